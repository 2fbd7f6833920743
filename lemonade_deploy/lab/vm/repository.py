# SPDX-License-Identifier: Apache-2.0
"""The apt repository that the guest asks: trixie-backports with one kernel, served on the loopback."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from ..services.keys import Key, gpg_home, sign_release
from ..shell import run
from .kernels import BACKPORTS

OWNER = "Debian backports (repacked by lemonade-deploy's lab) <backports@lab.invalid>"
GATEWAY = "10.0.2.2"  # this machine's loopback, seen from the guest
# Debian's own way to say that nothing comes from here unasked.
FIELDS = {
    "Origin": "Debian Backports",
    "Label": "Debian Backports",
    "Suite": "stable-backports",
    "Codename": BACKPORTS,
    "NotAutomatic": "yes",
    "ButAutomaticUpgrades": "yes",
    "Components": "main",
    "Architectures": "amd64",
}
KEYRING = "/etc/apt/keyrings/lemonade-lab-backports.asc"
SOURCES = "/etc/apt/sources.list.d/lemonade-lab-backports.sources"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on stderr."""


class Repository:
    """A signed repository in a folder, served by a thread; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = _key(folder)
        handler = partial(_Quiet, directory=str(folder / "www"))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Repository:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def publish(self, debs: Iterable[Path]) -> None:
        """Serve *debs* in place of whatever was served before."""
        www = self.folder / "www"
        shutil.rmtree(www, ignore_errors=True)
        pool, suite = www / "pool", www / "dists" / BACKPORTS
        binary = suite / "main/binary-amd64"
        for path in (pool, binary):
            path.mkdir(parents=True)
        for deb in debs:
            shutil.copy2(deb, pool)
        (binary / "Packages").write_text(run(["apt-ftparchive", "packages", "pool"], cwd=www).stdout, "utf-8")
        options = [word for k, v in FIELDS.items() for word in ("-o", f"APT::FTPArchive::Release::{k}={v}")]
        release = suite / "Release"
        release.write_text(run(["apt-ftparchive", *options, "release", suite]).stdout, "utf-8")
        sign_release(release, self.key)

    def sources(self) -> str:
        """The deb822 file that names the repository in the guest."""
        return (
            f"Types: deb\nURIs: http://{GATEWAY}:{self._server.server_port}\nSuites: {BACKPORTS}\n"
            f"Components: main\nSigned-By: {KEYRING}\n"
        )

    def enrol(self) -> str:
        """A shell command that makes the guest's apt know the repository."""
        files = {KEYRING: self.key.armored.read_text("utf-8"), SOURCES: self.sources()}
        parts = [f"mkdir -p {Path(KEYRING).parent}"]
        parts += [f"cat > {path} <<'LAB'\n{text.rstrip()}\nLAB" for path, text in files.items()]
        return "\n".join(parts)


def _key(folder: Path) -> Key:
    """A signing key for this repository alone."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    armored, binary, secret = (folder / f"key.{end}" for end in ("asc", "gpg", "secret.asc"))
    with gpg_home() as gpg:
        run([*gpg, "--passphrase", "", "--quick-generate-key", OWNER, "ed25519", "sign,cert", "1y"])
        listing = run([*gpg, "--with-colons", "--list-keys"]).stdout
        fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
        secret.touch(mode=0o600)
        secret.write_text(run([*gpg, "--armor", "--export-secret-keys", fingerprint]).stdout, "utf-8")
        run([*gpg, "--armor", "--output", armored, "--export", fingerprint])
        run([*gpg, "--output", binary, "--export", fingerprint])
    return Key("backports", fingerprint, armored, binary, secret)
