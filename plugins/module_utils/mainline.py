# SPDX-License-Identifier: Apache-2.0
"""Ubuntu's mainline builds: what their pages and their CHECKSUMS say. Pure.

kernel.ubuntu.com/mainline is no apt repository: a page lists the versions, a page a version says how
its build ended, and a folder an architecture holds the packages with CHECKSUMS and CHECKSUMS.gpg.
A build's stamp (YYYYMMDDHHMM) is part of its packages' version; two builds may lie in one folder.
Source: wiki.ubuntu.com/Kernel/MainlineBuilds and the folders themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# The oldest version that is worth installing: the CWSR fix (module kernels).
OLDEST = (6, 18, 4)
# Either stands on the page of a version whose packages were made.
SUCCEEDED = ("Build for amd64 succeeded", "Test amd64/build succeeded")

_FOLDER = re.compile(r"v(\d+)\.(\d+)(?:\.(\d+))?")
_HREF = re.compile(r"""href=["']?(?:\./)?(v\d[\w.-]*?)/?["'>\s]""", re.IGNORECASE)
_SUM = re.compile(r"([0-9a-fA-F]{64})\s+[*]?(\S+)")
_DEB = re.compile(r"(linux-[a-z0-9.+-]+)_(\d[\w.]*-\d{6}\.(\d{12}))_(amd64|all)\.deb")


class Unusable(Exception):
    """This build cannot be taken, and why; another may do."""


class Version(NamedTuple):
    """A stable version: its folder (``v6.18.20``) and the release its kernel calls itself."""

    folder: str
    number: tuple[int, int, int]

    @property
    def common(self) -> str:
        """``6.18.20-061820``."""
        return "{0}.{1}.{2}-{0:02d}{1:02d}{2:02d}".format(*self.number)

    @property
    def release(self) -> str:
        """``6.18.20-061820-generic``, as ``uname -r`` will show it."""
        return f"{self.common}-generic"


class Package(NamedTuple):
    """One package of a build, as the signed list names it."""

    name: str
    file: str
    version: str
    sha256: str


def versions(names: Iterable[str]) -> list[Version]:
    """The stable versions among folder *names*, newest first; release candidates are left out."""
    found = set()
    for name in names:
        match = _FOLDER.fullmatch(name)
        if match:
            found.add(Version(name, (int(match[1]), int(match[2]), int(match[3] or 0))))
    return sorted(found, key=lambda version: version.number, reverse=True)


def folders(page: str) -> list[str]:
    """Names of the folders that the index page links to."""
    return _HREF.findall(page)


def succeeded(page: str) -> bool:
    """Whether a version's page says that its amd64 build ended well."""
    return any(text in page for text in SUCCEEDED)


def checksums(text: str) -> dict[str, str]:
    """SHA-256 (lower case) by file name of a CHECKSUMS file. Raises Unusable where a name has two."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _SUM.fullmatch(line.strip())
        if match is None:
            continue  # comments, and the SHA-1 of the same files
        name, digest = match[2].rpartition("/")[2], match[1].lower()
        if found.setdefault(name, digest) != digest:
            raise Unusable(f"CHECKSUMS has two digests of {name}")
    return found


def select(version: Version, sums: dict[str, str], headers: bool) -> tuple[Package, ...]:
    """The packages of the newest build to install: image, modules, and *headers* where they are needed.

    All are of one stamp. Raises Unusable where the newest build lacks one of them.
    """
    packages = [_package(name, digest) for name, digest in sums.items()]
    ours = [p for p in packages if p is not None and p.version.startswith(f"{version.common}.")]
    if not ours:
        raise Unusable(f"CHECKSUMS names no package of {version.release}")
    newest = max(package.version for package in ours)
    by_name = {package.name: package for package in ours if package.version == newest}
    wanted = [_image(version.release, by_name), f"linux-modules-{version.release}"]
    if headers:
        wanted += [f"linux-headers-{version.release}", f"linux-headers-{version.common}"]
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise Unusable(f"the newest build ({newest}) has no {', '.join(missing)}")
    return tuple(by_name[name] for name in wanted)


def _package(file: str, digest: str) -> Package | None:
    match = _DEB.fullmatch(file)
    return Package(match[1], file, match[2], digest) if match else None


def _image(release: str, known: Iterable[str]) -> str:
    """Builds for other architectures and former times call it without "unsigned"."""
    signed = f"linux-image-{release}"
    return signed if signed in set(known) else f"linux-image-unsigned-{release}"


def demand_counted(wanted: Sequence[str], verified: Sequence[str]) -> None:
    """As many verified packages as wanted ones: that none failed is no proof. Raises Unusable."""
    if sorted(set(verified)) != sorted(wanted) or len(verified) != len(wanted):
        missing = ", ".join(sorted(set(wanted) - set(verified))) or "one was counted twice"
        raise Unusable(f"{len(verified)} of {len(wanted)} packages were verified (missing: {missing})")
