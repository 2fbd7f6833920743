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

from lemonade_deploy.depot import lockfile, packages, store
from lemonade_deploy.depot.lock import merge
from lemonade_deploy.depot.packages import Package
from lemonade_deploy.depot.store import WrongBytes
from lemonade_deploy.domain.gunzip import CHUNK, ArchiveError
from lemonade_deploy.domain.lock import FILE_NAME, LockError, Release, parse
from lemonade_deploy.domain.lock_text import load

LOCK_LIMIT = 16 << 20  # bytes
Progress = Callable[[int], None]


class NoExport(ArchiveError):
    """The file is nothing that `depot export` writes."""


class Damaged(ArchiveError):
    """An export that was cut off, or that holds what `depot export` does not write."""


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
    return [path for path, (size, _sha256) in content.files().items() if not store.has(folder / path, size)]


def room_for(folder: Path, content: Content) -> int:
    """Bytes that the depot still needs for *content*: files, and chunks of about the archive's size."""
    needed = 0
    for path, (size, _sha256) in content.files().items():
        place = folder / path
        partial = place.with_name(place.name + store.PARTIAL)
        begun = partial.stat().st_blocks * 512 if partial.is_file() else 0
        if not store.has(place, size):
            needed += max(size - begun, 0)
    return needed + sum(r.size for r in content.releases.values() if store.index_of(folder, r) is None)


def export(folder: Path, content: Content, target: Path, progress: Progress = lambda _done: None) -> int:
    """Write *target*; gives its bytes. *progress* gets the bytes of files so far.

    Each file is compared with the lock once more: what has crossed the gap cannot be fetched again.
    Raises WrongBytes, FetchError (no room), OSError.
    """
    partial = target.with_name(target.name + store.PARTIAL)
    text = lockfile.text(content.releases, content.packages).encode()
    # A member (the lock is one) has a head of a block, with a long name three, and its last may not be full.
    heads = (len(content.files()) + 1) * 4 * tarfile.BLOCKSIZE
    store.demand(target.parent, content.size + len(text) + heads + tarfile.RECORDSIZE)
    try:
        with store.explained(target.parent):
            _write(folder, content, partial, text, progress)
            partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)  # it cannot be gone on with
        raise
    return target.stat().st_size


def _write(folder: Path, content: Content, partial: Path, text: bytes, progress: Progress) -> None:
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
            if (got := read.digest.hexdigest()) != sha256:
                raise WrongBytes(path, sha256, got, size, str(folder))


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


def bring_in(
    source: Path,
    folder: Path,
    known: Content,
    progress: Progress = lambda _done: None,
    agreed: Callable[[], None] = lambda: None,
) -> tuple[Content, Content]:
    """Put what an exported file holds into the depot; gives that, and *known* with it.

    *agreed* is called once the locks agree, before anything is written. *progress* gets the bytes of
    files so far. Raises FetchError (no room), NoExport (not such a file), Damaged, Changed or
    Contradiction (*known* says otherwise), WrongBytes, OSError.
    """
    try:
        with _opened(source) as tar:
            found = _locked(tar, source)
            merged = known.merged(found)  # before anything in the depot is replaced
            store.demand(folder, room_for(folder, found))
            agreed()
            _unpack(tar, folder, found, progress)
            return found, merged
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise Damaged(f"{source} is damaged or was cut off ({error}).") from error


def _opened(source: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(source, "r|")
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        raise NoExport(f"{source} is no tar file, so no export of a depot.") from error


def _locked(tar: tarfile.TarFile, source: Path) -> Content:
    first = tar.next()
    content = tar.extractfile(first) if first and first.size <= LOCK_LIMIT else None
    if first is None or first.name != FILE_NAME or content is None:
        raise NoExport(f"{source} is no export of a depot: it does not begin with {FILE_NAME}.")
    try:
        told = load(content.read(), FILE_NAME)
        return Content(parse(told, FILE_NAME), lockfile.packages_of(told, FILE_NAME))
    except LockError as error:
        raise Damaged(f"{source} holds a lock file that is wrong: {error}.") from error


def _unpack(tar: tarfile.TarFile, folder: Path, content: Content, progress: Progress) -> None:
    expected, done = content.files(), 0
    while member := tar.next():
        # Names are looked up, never used as they are: nothing reaches out of the folder.
        found = expected.pop(member.name, None)
        stream = tar.extractfile(member) if found and member.isreg() else None
        if found is None or stream is None:
            raise Damaged(f"{tar.name!s} holds {member.name!r}, which its lock does not name.")
        if member.size != found[0]:
            raise Damaged(
                f"{tar.name!s}: {member.name} has {member.size} bytes in it, its lock says {found[0]}."
            )
        _take(_Counted(stream, progress, done), member.name, found[1], folder, str(tar.name))
        done += found[0]
    if expected:
        raise Damaged(f"{tar.name!s} lacks {', '.join(expected)}.")


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
        raise WrongBytes(path, sha256, got, size, source)
    partial.replace(place)
    place.with_name(place.name + store.PROGRESS).unlink(missing_ok=True)
