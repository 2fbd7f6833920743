# SPDX-License-Identifier: Apache-2.0
"""Unpack a tar stream below a fresh folder, refusing whatever could reach out of it.

What is refused: absolute paths, `..`, control characters, links that leave the tree,
members below a link, devices and fifos, set-uid files, the kit's own names. What is kept:
hidden files, modes (without set-gid, sticky and world-writable bits), links and times;
Python trusts a .pyc only while its source's time is unchanged. Owner is who unpacks: root.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Protocol

from .bundle_progress import ANY_TIME, Journal, Part, Reached
from .gunzip import ArchiveError
from .manifest import OWN_PREFIX, Manifest
from .tarstream import BLOCK, FILE, FOLDER, HARDLINK, SYMLINK, Member, Stream, members

_KEEP = 0o775  # mode bits that survive
# Bytes that Linux takes: of a name, of a link's target, and of a path, less the folder it is put into.
_NAME_MAX, _TARGET_MAX, _PATH_MAX = 255, 4095, 4095 - 255


class Sink(Protocol):
    """Where members go; paths are relative, clean and checked."""

    def folder(self, path: str, mode: int) -> None:
        """Make a folder, or set the mode of the one that is there."""

    def replaces(self, path: str) -> None:
        """Called before an earlier file or link of that name is made anew."""

    def file(self, path: str, mode: int, size: int, mtime: int, content: Iterator[memoryview]) -> None:
        """Make a regular file of *size* bytes; *content* must be read to its end."""

    def rest(self, path: str, mode: int, mtime: int, done: int, content: Iterator[memoryview]) -> None:
        """The rest of a regular file of which *done* bytes are there; *content* is read to its end."""

    def symlink(self, path: str, target: str) -> None:
        """Make a symbolic link."""

    def hardlink(self, path: str, target: str) -> None:
        """Make *path* another name of the file *target*."""


class Nowhere:
    """A sink that keeps nothing: the controller computes a manifest only."""

    def replaces(self, path: str) -> None:
        """Nothing to do."""

    def folder(self, path: str, mode: int) -> None:
        """Nothing to do."""

    def file(self, path: str, mode: int, size: int, mtime: int, content: Iterator[memoryview]) -> None:  # noqa: ARG002
        """Read the content; it is hashed on its way."""
        for _piece in content:
            pass

    def rest(self, path: str, mode: int, mtime: int, done: int, content: Iterator[memoryview]) -> None:
        """Never called: nothing is there."""

    def symlink(self, path: str, target: str) -> None:
        """Nothing to do."""

    def hardlink(self, path: str, target: str) -> None:
        """Nothing to do."""


def unpack(
    chunks: Iterable[bytes],
    sink: Sink,
    limit: int | None = None,
    reached: Reached | None = None,
    journal: Journal | None = None,
) -> Manifest:
    """Send every member of the tar stream to *sink*; returns the manifest of the tree.

    *limit*: bytes of regular files after which the archive is not the expected one. *reached*: what
    the sink has already; *chunks* begin where it ends. *journal* is told how far it is.
    Raises ArchiveError (after *chunks* were read to their end) and OSError.
    """
    reached = reached or Reached()
    stream = Stream(chunks, reached.offset)
    unpacker = _Unpacker(stream, sink, limit, reached.manifest, journal)
    try:
        if reached.part:
            unpacker.go_on(reached.part)
        for member, content in members(stream):
            unpacker.take(member, content)
    except ArchiveError:
        stream.drain()
        raise
    return unpacker.manifest


class _Unpacker:
    def __init__(
        self, stream: Stream, sink: Sink, limit: int | None, manifest: Manifest, journal: Journal | None
    ) -> None:
        self.manifest = manifest
        self._stream, self._sink, self._limit, self._journal = stream, sink, limit, journal
        manifest.added()  # those are noted

    def take(self, member: Member, content: Iterator[memoryview]) -> None:
        path = _clean(member.path)
        if not path:  # the archive's root is "."
            return
        self._parents(path)
        known = self.manifest.kind(path)
        if known and (known == FOLDER) != (member.kind == FOLDER):
            raise ArchiveError(f"{path}: a folder and something else under one name")
        itself = member.kind == HARDLINK and _clean(member.target) == path
        if known and known != FOLDER and not itself:
            self._sink.replaces(path)
        if member.kind == FOLDER:
            self._folder(path, member.mode & _KEEP | 0o700)
        elif member.kind == FILE:
            self._file(path, member, content)
        elif member.kind == SYMLINK:
            _check_target(path, member.target)
            self._sink.symlink(path, member.target)
            self.manifest.add_link(path, member.target)
        elif member.kind == HARDLINK:
            self._hardlink(path, _clean(member.target))
        self._note(member)

    def _note(self, member: Member) -> None:
        """What the member has added; its content is read, the padding after it is not."""
        if self._journal:
            mtime = ANY_TIME if member.kind == HARDLINK else max(0, member.mtime)
            end = self._stream.position + -member.size % BLOCK
            self._journal.entries(end, mtime, self.manifest.added())

    def go_on(self, part: Part) -> None:
        """The rest of a file of which the sink has the beginning."""
        content = self._hashed(part, self._stream.pieces(part.size - part.done))
        self._sink.rest(part.path, part.mode, part.mtime, part.done, content)
        self.manifest.add_file(part.path, part.mode, part.size, part.digest.hexdigest())
        self._stream.exact(-part.size % BLOCK)
        self._note(Member(part.path, FILE, part.mode, 0, part.mtime))

    def _parents(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if not parent:
            return
        kind = self.manifest.kind(parent)
        if kind is None:
            self._parents(parent)
            self._folder(parent, 0o755)
        elif kind != FOLDER:
            raise ArchiveError(f"{path}: lies below {parent}, which is not a folder")

    def _folder(self, path: str, mode: int) -> None:
        self._sink.folder(path, mode)
        self.manifest.add_folder(path, mode)

    def _file(self, path: str, member: Member, content: Iterator[memoryview]) -> None:
        if member.mode & 0o6000:
            raise ArchiveError(f"{path}: set-uid or set-gid, which is refused")
        if self._limit is not None and self.manifest.size + member.size > self._limit:
            raise ArchiveError(f"{path}: unpacks to more than the expected {self._limit} bytes")
        part = Part(path, member.mode & _KEEP, member.size, max(0, member.mtime), 0, hashlib.sha256())
        self._sink.file(path, part.mode, part.size, part.mtime, self._hashed(part, content))
        self.manifest.add_file(path, part.mode, part.size, part.digest.hexdigest())

    def _hashed(self, part: Part, content: Iterator[memoryview]) -> Iterator[memoryview]:
        for piece in content:
            part.digest.update(piece)
            part.done += len(piece)
            yield piece
            if self._journal and part.done < part.size:
                self._journal.part(self._stream.position, part)

    def _hardlink(self, path: str, target: str) -> None:
        known = self.manifest.file(target)
        if known is None:
            raise ArchiveError(f"{path}: a hard link to {target}, which is not a file of this archive")
        if path != target:
            self._sink.hardlink(path, target)
            self.manifest.add_file(path, *known)


def _clean(path: str) -> str:
    """The path without `./` and doubled slashes; empty for the root itself."""
    if path.startswith("/"):
        raise ArchiveError(f"{path}: an absolute path, which is refused")
    if not path.isprintable() and any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        raise ArchiveError(f"{path!r}: control characters in a name, which are refused")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ArchiveError(f"{path}: a path with `..`, which is refused")
    if parts and parts[0].startswith(OWN_PREFIX):
        raise ArchiveError(f"{path}: a name that lemonade-deploy itself uses, which is refused")
    clean = "/".join(parts)
    size = _bytes(clean)
    if size > _NAME_MAX and (size > _PATH_MAX or any(_bytes(part) > _NAME_MAX for part in parts)):
        raise ArchiveError(f"{path[:100]}…: a name of {size} bytes in all, longer than a file system takes")
    return clean


def _bytes(text: str) -> int:
    """Bytes of a name on the disk."""
    return len(text.encode("utf-8", "surrogateescape"))


def _check_target(path: str, target: str) -> None:
    """A link's target may climb (`..` first, then names), but never out of the tree.

    `..` after a name is refused too: behind another link it would climb from elsewhere.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    if _bytes(target) > _TARGET_MAX:
        raise ArchiveError(f"{path}: a link to a name of {_bytes(target)} bytes, longer than Linux takes")
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    leaves = target.startswith("/") or climbs > path.count("/") or ".." in parts[climbs:]
    if leaves or not target or any(ord(letter) < 32 for letter in target):
        raise ArchiveError(f"{path}: a link to {target!r}, which leaves the bundle and is refused")
