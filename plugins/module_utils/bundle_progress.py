# SPDX-License-Identifier: Apache-2.0
"""How far a tree is that is being unpacked, noted inside it: a run that was killed goes on there.

Every note is a claim. Before it counts, what it says is compared with the disk (all bytes are read
again), and what no note vouches for is removed; in the end the whole tree must have the locked digest.

    FIRST LINE   schema, digest of the archive
    OFFSET MTIME LINE-OF-THE-MANIFEST          an entry; the archive goes on at OFFSET
    OFFSET MTIME p MODE SIZE DONE SHA256 PATH  the first DONE bytes of a large file
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .gunzip import CHUNK
from .manifest import OWN_PREFIX, Manifest, file_sha256

NAME = OWN_PREFIX + ".progress"
SCHEMA = "lemonade-deploy/progress/1"
STEP = 8 << 20  # bytes of the archive between two writes of notes
ANY_TIME = -1  # of what has no time of its own
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass
class Part:
    """A large file that is half there; ``digest`` has seen the first ``done`` bytes."""

    path: str
    mode: int
    size: int
    mtime: int
    done: int
    digest: Any


@dataclass
class Reached:
    """What is on the disk and sound: the archive goes on at ``offset``, in ``part`` if there is one."""

    manifest: Manifest = field(default_factory=Manifest)
    offset: int = 0
    part: Part | None = None


@dataclass(frozen=True)
class _Note:
    offset: int
    mtime: int
    line: str

    @property
    def kind(self) -> str:
        return self.line[0]

    @property
    def path(self) -> str:
        words = {"f": 4, "d": 2, "p": 5}
        if self.kind == "l":
            return self.line[2:].split(" -> ", 1)[0]
        return self.line.split(" ", words[self.kind])[-1]


class Journal:
    """Notes of a run, appended to the file every STEP bytes of the archive."""

    def __init__(self, root: str, archive: str, kept: Iterable[str] = ()) -> None:
        self._lines: list[str] = [f"{SCHEMA} {archive}", *kept]
        self._written = 0
        self._file = open(os.path.join(root, NAME), "wb", buffering=0)  # noqa: SIM115
        try:
            self.write()
        except OSError:
            self._file.close()
            raise

    def entries(self, offset: int, mtime: int, lines: list[str]) -> None:
        """A member was handed on with these lines of the manifest; the next one begins at *offset*."""
        self._lines += [f"{offset} {mtime} {line}" for line in lines]
        if offset - self._written >= STEP:
            self._written = offset
            self.write()

    def part(self, offset: int, part: Part) -> None:
        """So much of a large file was handed on; its content goes on at *offset*."""
        if offset - self._written >= STEP:
            self._written = offset
            sha256 = part.digest.copy().hexdigest()
            line = f"p {part.mode:o} {part.size} {part.done} {sha256} {part.path}"
            self._lines.append(f"{offset} {part.mtime} {line}")
            self.write()

    def write(self) -> None:
        """Write what was noted so far. Raises OSError."""
        text = "".join(f"{line}\n" for line in self._lines)
        self._file.write(text.encode("utf-8", "surrogateescape"))
        self._lines = []

    def close(self) -> None:
        """No more notes. Those that cannot be written are lost, which costs a later run some time."""
        with contextlib.suppress(OSError):
            self.write()
        self._file.close()


def belongs(root: str, archive: str) -> bool:
    """Whether a folder is an unfinished tree of this archive."""
    try:
        with open(os.path.join(root, NAME), encoding="utf-8", errors="surrogateescape") as stream:
            return stream.readline() == f"{SCHEMA} {archive}\n"
    except OSError:
        return False


def noted_bytes(root: str) -> int:
    """Bytes of the files that are noted, without a look at them."""
    notes = _read(root)
    return sum(int(note.line.split(" ")[2]) for note in notes if note.kind == "f")


def restore(root: str, archive: str) -> tuple[Reached, Journal]:
    """Keep what is sound of an unfinished tree, remove the rest, and go on noting. Raises OSError.

    A folder that is no such tree is emptied.
    """
    notes = _read(root) if belongs(root, archive) else []
    paths = [note.path for note in notes if note.kind in "fl"]
    if len(set(paths)) != len(paths):
        notes = []  # an archive that replaces its own files: which state the disk shows is not told
    entries = [note for note in notes if note.kind != "p"]
    sound = next((n for n, note in enumerate(entries) if not _sound(root, note)), len(entries))
    reached = Reached()
    for note in entries[:sound]:
        _add(reached.manifest, note)
        reached.offset = note.offset
    parts = [note for note in notes if note.kind == "p" and note.offset > reached.offset]
    if sound == len(entries) and parts:
        _restore_part(root, parts, reached)
    _remove_others(root, "", reached)
    kept = (f"{note.offset} {note.mtime} {note.line}" for note in entries[:sound])
    return reached, Journal(root, archive, kept)


def _read(root: str) -> list[_Note]:
    """The notes up to the first that is none (the end of the file may be torn)."""
    notes: list[_Note] = []
    with open(os.path.join(root, NAME), encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        stream.readline()
        for text in stream:
            offset, _space, rest = text.partition(" ")
            mtime, _space, line = rest.rstrip("\n").partition(" ")
            fields = {"f": 4, "d": 2, "l": 1, "p": 5}.get(line[:1], 99)
            numbers = _NUMBER.fullmatch(offset) and _NUMBER.fullmatch(mtime.removeprefix("-"))
            if not text.endswith("\n") or not numbers or line.count(" ") < fields:
                break
            notes.append(_Note(int(offset), int(mtime), line))
    return notes


def _sound(root: str, note: _Note) -> bool:
    """Whether the disk has what a note says."""
    real = os.path.join(root, note.path)
    try:
        status = os.lstat(real)
        if note.kind == "l":
            return stat.S_ISLNK(status.st_mode) and os.readlink(real) == note.line.partition(" -> ")[2]
        mode = int(note.line.split(" ", 2)[1], 8)
        if note.kind == "d":
            if stat.S_ISDIR(status.st_mode):
                os.chmod(real, mode)
            return stat.S_ISDIR(status.st_mode)
        size, sha256 = note.line.split(" ", 4)[2:4]
        if not stat.S_ISREG(status.st_mode) or status.st_size != int(size):
            return False
        if stat.S_IMODE(status.st_mode) != mode or note.mtime not in (ANY_TIME, int(status.st_mtime)):
            return False
        return file_sha256(real) == sha256
    except FileNotFoundError:
        return False


def _add(manifest: Manifest, note: _Note) -> None:
    if note.kind == "l":
        manifest.add_link(note.path, note.line.partition(" -> ")[2])
        return
    mode = int(note.line.split(" ", 2)[1], 8)
    if note.kind == "d":
        manifest.add_folder(note.path, mode)
    else:
        size, sha256 = note.line.split(" ", 4)[2:4]
        manifest.add_file(note.path, mode, int(size), sha256)


def _restore_part(root: str, parts: list[_Note], reached: Reached) -> None:
    """Read a large file up to the last note that its bytes agree with."""
    path = parts[0].path
    real = os.path.join(root, path)
    if os.path.islink(real) or not os.path.isfile(real):
        return
    digest, done = hashlib.sha256(), 0
    with open(real, "rb", buffering=0) as stream:
        for note in parts:
            mode, size, upto, sha256, named = note.line.split(" ", 5)[1:]
            while done < int(upto) and (data := stream.read(min(CHUNK, int(upto) - done))):
                digest.update(data)
                done += len(data)
            if named != path or done != int(upto) or digest.hexdigest() != sha256:
                return
            reached.offset = note.offset
            reached.part = Part(path, int(mode, 8), int(size), note.mtime, done, digest.copy())


def _remove_others(root: str, below: str, reached: Reached) -> None:
    """Remove what no note vouches for."""
    half = reached.part.path if reached.part else None
    with os.scandir(os.path.join(root, below)) as entries:
        for entry in list(entries):
            path = os.path.join(below, entry.name)
            is_folder = entry.is_dir(follow_symlinks=False)
            if reached.manifest.kind(path) is None and path not in (half, NAME):
                shutil.rmtree(entry.path) if is_folder else os.unlink(entry.path)
            elif is_folder:
                _remove_others(root, path, reached)
