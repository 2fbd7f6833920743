# SPDX-License-Identifier: Apache-2.0
"""A depot's releases, packages and their lock as one tar file, for machines without a network.

The release's own files are in it, not the chunks: these are made anew where it is imported,
from bytes that were compared with the lock that came along.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import yaml

from lemonade_deploy.depot import lockfile, packages, store
from lemonade_deploy.depot.lock import merge
from lemonade_deploy.depot.packages import Package
from lemonade_deploy.domain.gunzip import CHUNK, ArchiveError
from lemonade_deploy.domain.lock import FILE_NAME, Release, parse

LOCK_LIMIT = 16 << 20  # bytes
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Content:
    """What a lock names: releases and packages."""

    releases: dict[str, Release]
    packages: dict[str, Package]

    def files(self) -> dict[str, tuple[int, str]]:
        """Path below the depot → (bytes, sha256), in the order of the archive."""
        assets = {f"{r.tag}/{a.name}": (a.size, a.sha256) for r in self.releases.values() for a in r.assets}
        return assets | {path: (package.size, package.sha256) for path, package in self.packages.items()}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _sha256 in self.files().values())

    def merged(self, new: Content) -> Content:
        """This with *new*. Raises Changed, Contradiction."""
        releases = self.releases
        for release in new.releases.values():
            releases = merge(releases, release)
        return Content(releases, packages.merge(self.packages, new.packages.values()))


def missing(folder: Path, content: Content) -> list[str]:
    """Files that are not in the depot with their sizes."""
    return [
        path
        for path, (size, _sha256) in content.files().items()
        if not (place := folder / path).is_file() or place.stat().st_size != size
    ]


def export(folder: Path, content: Content, target: Path, progress: Progress = lambda _done: None) -> int:
    """Write *target*; gives its bytes. *progress* gets the bytes of files so far.

    Each file is compared with the lock once more: what has crossed the gap cannot be fetched again.
    Raises WrongBytes, OSError.
    """
    partial = target.with_name(target.name + store.PARTIAL)
    text = lockfile.text(content.releases, content.packages).encode()
    done = 0
    with tarfile.open(partial, "w") as tar:
        member = tarfile.TarInfo(FILE_NAME)
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
        for path, (size, sha256) in content.files().items():
            member = tarfile.TarInfo(path)
            member.size = size
            with (folder / path).open("rb") as stream:
                read = _Counted(stream, progress, done)
                tar.addfile(member, read)
            done += size
            _compare(path, sha256, read.digest.hexdigest(), size, str(folder))
    partial.replace(target)
    return target.stat().st_size


class _Counted:
    """A file that is read once: hashed, and told about."""

    def __init__(self, stream: IO[bytes], progress: Progress, done: int) -> None:
        self._stream, self._progress, self._done = stream, progress, done
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        data = self._stream.read(size)
        self.digest.update(data)
        self._done += len(data)
        self._progress(self._done)
        return data


class WrongBytes(Exception):
    """A file is not the locked one: the message has both digests."""


def _compare(path: str, expected: str, got: str, size: int, where: str) -> None:
    if got != expected:
        raise WrongBytes(f"{path}: expected sha256 {expected}, got {got} ({size} bytes) from {where}.")


def bring_in(
    source: Path, folder: Path, known: Content, progress: Progress = lambda _done: None
) -> tuple[Content, Content]:
    """Put what an exported file holds into the depot; gives that, and *known* with it.

    *progress* gets the bytes of files so far. Raises ArchiveError (not such a file), Changed or
    Contradiction (*known* says otherwise), WrongBytes, LockError, OSError.
    """
    try:
        with tarfile.open(source, "r|") as tar:
            found = _locked(tar)
            merged = known.merged(found)  # before anything in the depot is replaced
            _unpack(tar, folder, found, progress)
            return found, merged
    except (tarfile.TarError, EOFError) as error:
        raise ArchiveError(f"{source}: {error}") from error


def _locked(tar: tarfile.TarFile) -> Content:
    first = tar.next()
    content = tar.extractfile(first) if first and first.size <= LOCK_LIMIT else None
    if first is None or first.name != FILE_NAME or content is None:
        raise ArchiveError(f"it does not begin with a {FILE_NAME}")
    try:
        told = yaml.safe_load(content.read())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArchiveError(f"its {FILE_NAME} is no YAML: {error}") from error
    return Content(parse(told, FILE_NAME), lockfile.packages_of(told, FILE_NAME))


def _unpack(tar: tarfile.TarFile, folder: Path, content: Content, progress: Progress) -> None:
    expected, done = content.files(), 0
    while member := tar.next():
        # Names are looked up, never used as they are: nothing reaches out of the folder.
        found = expected.pop(member.name, None)
        stream = tar.extractfile(member)
        if found is None or stream is None:
            raise ArchiveError(f"it holds {member.name!r}, which its lock does not name")
        _take(_Counted(stream, progress, done), member.name, found[1], folder, str(tar.name))
        done += found[0]
    if expected:
        raise ArchiveError(f"it lacks {', '.join(expected)}")


def _take(content: _Counted, path: str, sha256: str, folder: Path, source: str) -> None:
    """One file, which gets its name once its digest is right."""
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    partial, size = place.with_name(place.name + store.PARTIAL), 0
    with partial.open("wb") as stream:
        while data := content.read(CHUNK):
            size += len(data)
            stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    got = content.digest.hexdigest()
    if got != sha256:
        partial.unlink()
        _compare(path, sha256, got, size, source)
    partial.replace(place)
    place.with_name(place.name + store.PROGRESS).unlink(missing_ok=True)
