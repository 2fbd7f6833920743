# SPDX-License-Identifier: Apache-2.0
"""A mainline tree as kernel.ubuntu.com's, signed for real with a key of the test's, on a nasty server."""

from __future__ import annotations

import hashlib
import io
import random
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nasty import Nasty

from lemonade_deploy.domain import mainline_candidates
from lemonade_deploy.domain.apt_plan import Simulation
from lemonade_deploy.domain.distribution import Distribution
from lemonade_deploy.domain.host import CommandFailed, Completed, Host, run_command
from lemonade_deploy.domain.kernel_choice import KernelCandidate, Mainline, Question

STAMP, OLDER = "202606191408", "202606181102"
GOOD_PAGE = "Test amd64/build succeeded (rc=0, on=amd64, time=0:09:53, log=amd64/log)<br>\n"


def gpg(home: Path, *arguments: str | Path, data: bytes | None = None) -> bytes:
    """gpg with a home of its own."""
    argv = ["gpg", "--homedir", str(home), "--batch", "--yes", "--quiet", "--passphrase", ""]
    argv += ["--pinentry-mode", "loopback", *map(str, arguments)]
    return subprocess.run(argv, input=data, capture_output=True, check=True).stdout


@dataclass
class Signer:
    """A key that signs; made once for a test session."""

    home: Path
    fingerprint: str
    key: bytes

    @classmethod
    def make(cls, expires: str = "never", *, at: str = "20250101T000000") -> Signer:
        """A new key; *at* is the time at which it was made (and signs)."""
        home = Path(tempfile.mkdtemp(prefix="km-", dir="/tmp"))  # a short path: gpg-agent's socket
        when = ["--faked-system-time", at]
        gpg(home, *when, "--quick-generate-key", "Test <t@invalid>", "ed25519", "sign,cert", expires)
        listing = gpg(home, "--with-colons", "--list-keys").decode()
        fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
        return cls(home, fingerprint, gpg(home, "--armor", "--export", fingerprint))

    def sign(self, data: bytes, *, at: str = "20250101T000100") -> bytes:
        """A detached signature."""
        return gpg(self.home, "--faked-system-time", at, "--detach-sign", data=data)


def deb(name: str, version: str, payload: bytes = b"", md5sums: int = 0) -> bytes:
    """A package with a control file and, behind it, any bytes as data. *md5sums*: bytes of that list."""
    control = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nSection: kernel\n".encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for file, content in (("control", control), ("md5sums", random.Random(1).randbytes(md5sums))):
            entry = tarfile.TarInfo(f"./{file}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    members = {"debian-binary": b"2.0\n", "control.tar.gz": buffer.getvalue(), "data.tar.xz": payload}
    data = b"!<arch>\n"
    for member, content in members.items():
        data += f"{member:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        data += content + b"\n" * (len(content) % 2)
    return data


def debs(
    version: str, stamp: str = STAMP, payload: bytes = b"p" * 200_000, control: int = 0
) -> dict[str, bytes]:
    """The four packages of a build by file name."""
    number = [*map(int, version.split(".")), 0][:3]
    common = "{0}.{1}.{2}-{0:02d}{1:02d}{2:02d}".format(*number)
    full = f"{common}.{stamp}"
    names = {
        f"linux-image-unsigned-{common}-generic": "amd64",
        f"linux-modules-{common}-generic": "amd64",
        f"linux-headers-{common}-generic": "amd64",
        f"linux-headers-{common}": "all",
    }
    return {
        f"{name}_{full}_{arch}.deb": deb(name, full, payload + name.encode(), control)
        for name, arch in names.items()
    }


def checksums(files: Mapping[str, bytes]) -> bytes:
    """CHECKSUMS as the real one: SHA-1 and SHA-256 of each file."""
    lines = []
    for algorithm in ("sha1", "sha256"):
        lines.append(f"# Checksums-{algorithm.title()}:")
        lines += [f"{hashlib.new(algorithm, data).hexdigest()}  {name}" for name, data in files.items()]
    return ("\n".join(lines) + "\n").encode()


@dataclass
class Site:
    """The files of a tree by path below /mainline/."""

    signer: Signer
    files: dict[str, bytes] = field(default_factory=dict)

    def version(
        self,
        name: str,
        packages: Mapping[str, bytes] | None = None,
        *,
        page: str = GOOD_PAGE,
        listed: Mapping[str, bytes] | None = None,
        signer: Signer | None = None,
    ) -> Site:
        """Add a version's folder; *listed* is what CHECKSUMS says where that differs."""
        packages = debs(name) if packages is None else packages
        folder = f"v{name}/"
        self.files[f"{folder}index.html"] = page.encode()
        for file, data in packages.items():
            self.files[f"{folder}amd64/{file}"] = data
        sums = checksums(packages if listed is None else listed)
        self.files[f"{folder}amd64/CHECKSUMS"] = sums
        self.files[f"{folder}amd64/CHECKSUMS.gpg"] = (signer or self.signer).sign(sums)
        return self

    def failed(self, name: str) -> Site:
        """A version whose build failed: a page, and no packages."""
        self.files[f"v{name}/index.html"] = b"Test amd64/build failed (rc=1, on=amd64)<br>\n"
        return self

    def index(self, *more: str) -> bytes:
        """The page that lists the versions."""
        folders = sorted({path.partition("/")[0] for path in self.files} | set(more))
        return "".join(f'<a href="{name}/">{name}/</a><br>\n' for name in folders).encode()

    def serve(self, server: Nasty, *more: str) -> str:
        """Put it on a server (folders give their page); its address."""
        server.files["/mainline/"] = self.index(*more)
        for path, data in self.files.items():
            server.files[f"/mainline/{path.removesuffix('index.html')}"] = data
        server.files["/key.asc"] = self.signer.key
        return f"{server.url}/mainline"

    def lay(self, folder: Path) -> Path:
        """Write it into a folder, as `wget -r` would."""
        for path, data in self.files.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return folder


def box(root: Path) -> Host:
    """A host below *root* whose commands see the host's /tmp there."""

    def run(
        argv: Sequence[str], env: Mapping[str, str], stdin: str | None, timeout: float | None
    ) -> Completed:
        moved = [f"{root}{word}" if word.startswith("/tmp/lemonade-deploy-") else word for word in argv]
        return run_command(moved, env, stdin, timeout)

    return Host(str(root), runner=run)


class FakeApt:
    """apt that can install everything but packages named in *broken*; remembers what it was asked."""

    def __init__(self, root: Path, broken: Iterable[str] = (), removes: Iterable[str] = ()) -> None:
        self.root, self.broken, self.removes = root, tuple(broken), tuple(removes)
        self.asked: list[list[str]] = []
        self.unsound = False  # packages are broken as they are: apt plans nothing

    def simulate_install(self, packages: Sequence[str]) -> Simulation:
        """As PrivateApt's."""
        names = []
        for path in packages:
            shown = subprocess.run(
                ["dpkg-deb", "-f", f"{self.root}{path}", "Package"],
                capture_output=True,
                text=True,
                check=True,
            )
            names.append(shown.stdout.strip())
        self.asked.append(names)
        bad = [name for name in names if any(text in name for text in self.broken)]
        bad = ["amdgpu-dkms"] if self.unsound else bad
        if bad:
            text = f"The following packages have unmet dependencies:\n {bad[0]} : Depends: libc6 (>= 2.38)\n"
            raise CommandFailed(Completed(("apt-get",), 100, text, "E: Unable to correct problems"))
        return Simulation(tuple(names), self.removes)


NOBLE = Distribution("ubuntu", "24.04", "noble")
STRIX = Question(NOBLE, ("gfx1151",), "mainline")
NEWEST = "6.18.36-061836-generic"


def usual(signer: Signer) -> Site:
    """A version that is too old, one built twice, one that failed, and a release candidate."""
    site = Site(signer).version("6.17.9").version("6.18.20")
    return site.version("6.18.36", {**debs("6.18.36", OLDER), **debs("6.18.36")}).failed("6.18.37")


def settings(site: Site, url: str, key: str = "") -> Mainline:
    address = url.partition("/mainline")[0]
    return Mainline(url, site.signer.fingerprint, key or f"{address}/key.asc")


def take(
    host: Host, site: Site, url: str, question: Question = STRIX, apt: FakeApt | None = None, key: str = ""
) -> KernelCandidate:
    return mainline_candidates.find(
        host,
        question,
        settings(site, url, key),
        apt or FakeApt(Path(host.root)),  # type: ignore[arg-type]
    )
