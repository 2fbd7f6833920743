# SPDX-License-Identifier: Apache-2.0
"""Packages in a depot: lemond's .deb and the files of a mainline kernel, for hosts without a network.

The lock file names them under `packages`, by their path below the depot's folder. Hosts judge them by
what vouches for them anyway (lemonade_server_deb_sha256; the signature over a kernel's CHECKSUMS).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from lemonade_deploy.depot import fetch, store
from lemonade_deploy.depot.store import DEBS, MAINLINE
from lemonade_deploy.domain.fetch import Download, FetchError, Policy
from lemonade_deploy.domain.lock import Asset, LockError

_NAME = r"[A-Za-z0-9][A-Za-z0-9._+~:-]*"
PATH = re.compile(rf"{DEBS}/{_NAME}|{MAINLINE}/(?:v{_NAME}/(?:{_NAME}/)?)?{_NAME}")
_DEB = re.compile(r"([a-z0-9][a-z0-9.+-]+)_[A-Za-z0-9.+~:-]+_(amd64|all)\.deb")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEYS = {"size", "sha256", "url", "locked_at"}
_READ = 1 << 20  # bytes
_AR = b"!<arch>\n"  # deb(5): a package is an ar archive

# (file's name, bytes so far, its size or None)
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Package:
    """One file; ``path`` below the depot's folder, ``size`` in bytes, ``url`` where it came from."""

    path: str
    size: int
    sha256: str
    url: str = ""
    locked_at: str = ""

    @property
    def name(self) -> str:
        """The file's name."""
        return PurePosixPath(self.path).name

    def show(self) -> str:
        """Digest and size, for people."""
        return f"sha256 {self.sha256} ({self.size} bytes)"

    def there(self, folder: Path) -> bool:
        """Whether the depot has it, with the locked bytes."""
        return store.has(folder / self.path, self.size, self.sha256)


class Contradiction(Exception):
    """A file is locked with other bytes; the message shows both."""

    def __init__(self, old: Package, new: Package) -> None:
        super().__init__(
            f"{old.path} is not what was locked on {old.locked_at or 'an unknown day'} from "
            f"{old.url or 'a file'}:\n  locked {old.show()}\n  now    {new.show()}"
        )


class NoPackage(FetchError):
    """What was given is no Debian package."""


def parse(value: Any, file: str) -> dict[str, Package]:
    """The lock file's `packages`. Raises LockError."""
    if not isinstance(value, Mapping):
        raise LockError(file, "packages", "expected a mapping")
    return {str(path): _entry(str(path), entry, file) for path, entry in value.items()}


def _entry(path: str, entry: Any, file: str) -> Package:
    key = f"packages.{path}"
    if not PATH.fullmatch(path) or path.endswith((store.PARTIAL, store.PROGRESS)):
        raise LockError(file, key, f"expected {DEBS}/FILE or {MAINLINE}/[vVERSION/[FOLDER/]]FILE")
    if not isinstance(entry, Mapping):
        raise LockError(file, key, "expected a mapping")
    if left := [str(name) for name in entry if name not in _KEYS]:
        raise LockError(file, f"{key}.{left[0]}", "is not a key of this schema")
    size, digest = entry.get("size"), entry.get("sha256")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise LockError(file, f"{key}.size", f"expected a number above 0, found {size!r}")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise LockError(file, f"{key}.sha256", f"expected 64 hexadecimal digits, found {digest!r}")
    return Package(path, size, digest, str(entry.get("url", "")), str(entry.get("locked_at", "")))


def document(packages: Iterable[Package]) -> dict[str, dict[str, Any]]:
    """What `parse` reads back."""
    return {
        package.path: {
            **({"url": package.url} if package.url else {}),
            "locked_at": package.locked_at,
            "size": package.size,
            "sha256": package.sha256,
        }
        for package in sorted(packages, key=lambda package: package.path)
    }


def merge(known: Mapping[str, Package], new: Iterable[Package]) -> dict[str, Package]:
    """*known* with *new*; an unchanged one keeps its entry. Raises Contradiction."""
    merged = dict(known)
    for package in new:
        old = merged.setdefault(package.path, package)
        if (old.sha256, old.size) != (package.sha256, package.size):
            raise Contradiction(old, package)
    return merged


def deb_name(source: str) -> str:
    """The file's name of a .deb given by address or path. Raises NoPackage where it is none."""
    try:
        name = unquote(PurePosixPath(urlsplit(source).path if "://" in source else source).name)
    except ValueError:  # http://[
        name = ""
    if not _DEB.fullmatch(name):
        raise NoPackage(
            f"{source}: {name or 'it'} is no name of a package (NAME_VERSION_amd64.deb or …_all.deb).",
            "Give the address or path of the .deb itself.",
        )
    return name


def take(
    folder: Path,
    path: str,
    source: str,
    sha256: str = "",
    progress: Progress = lambda _name, _done, _size: None,
    policy: Policy | None = None,
) -> Package:
    """Bring *source* (an address, or a file of this machine) to *path* below the depot's *folder*.

    *sha256*: what it must be; "" takes it as it is. Raises FetchError, OSError.
    """
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    partial, digest, size = place.with_name(place.name + store.PARTIAL), hashlib.sha256(), 0
    remote, head = "://" in source, b""
    with partial.open("wb") as stream:
        for chunk, whole in _read(source, policy) if remote else _read_file(Path(source)):
            head = head if len(head) >= len(_AR) else head + chunk[: len(_AR)]
            stream.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            progress(place.name, size, whole)
        stream.flush()
        os.fsync(stream.fileno())
    if sha256 and digest.hexdigest() != sha256.lower():
        partial.unlink()
        raise FetchError(
            f"{source}: expected sha256 {sha256.lower()}, got {digest.hexdigest()} ({size} bytes).",
            "Compare the digest with what the publisher says; nothing was kept.",
        )
    if not size:
        partial.unlink()
        raise FetchError(f"{source} is empty.")
    if path.endswith(".deb") and not head.startswith(_AR):
        partial.unlink()
        raise FetchError(
            f"{source} is no Debian package: it begins with {head[: len(_AR)]!r}, not with {_AR!r}.",
            "Look at what stands there (a page to sign in, or of an error?); nothing was kept.",
        )
    partial.replace(place)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Package(path, size, digest.hexdigest(), source if remote else "", now)


def _read(url: str, policy: Policy | None) -> Iterable[tuple[bytes, int | None]]:
    download = Download(url, policy=policy)
    for chunk in download.chunks():
        yield chunk, download.size


def _read_file(path: Path) -> Iterable[tuple[bytes, int | None]]:
    with path.open("rb") as stream:
        size = path.stat().st_size
        while chunk := stream.read(_READ):
            yield chunk, size


def bring(
    folder: Path, package: Package, progress: Progress, jobs: int, policy: Policy | None = None
) -> None:
    """Fetch a locked package again, compared with the lock. Raises FetchError, OSError."""
    if package.there(folder):
        return
    if not package.url:
        raise FetchError(
            f"{package.path} is locked without an address, and the depot does not have it.",
            "Add it again with `lemonade-deploy depot add-deb` or `add-kernel`.",
        )
    asset = Asset(package.name, package.size, package.sha256)
    try:
        fetch.bring(asset, package.url, (folder / package.path).parent, progress, jobs, policy)
    except fetch.OtherBytes as other:
        raise FetchError(
            f"{package.path}: expected sha256 {package.sha256}, got {other.digest} from {package.url}.",
            "Nothing was kept. If the new bytes are wanted, remove the entry from the lock file and add it "
            "again.",
        ) from other
