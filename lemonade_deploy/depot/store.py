# SPDX-License-Identifier: Apache-2.0
"""The depot's folder: one folder a release tag, with the release's own files and its chunks.

Packages lie in `packages` and, laid out as kernel.ubuntu.com does, in `mainline`.

What ends in PARTIAL is being made. A file with its final name was compared with a lock; whether it
is what the present one names, only its digest says.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lemonade_deploy.domain import depot_index
from lemonade_deploy.domain.depot_index import Index
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.lock import Release
from lemonade_deploy.errors import UsageError

PARTIAL = ".partial"
PROGRESS = ".progress"
TOKEN = "token"  # noqa: S105  a file's name
MARK = ".lemonade-depot"  # says whose folder it is, and which process works in it
DEBS, MAINLINE = "packages", "mainline"
SHELVES = (DEBS, MAINLINE)  # folders of packages beside those of releases
INCOMING = "incoming"  # what the lock has not agreed to yet
_OWN_TOKEN = re.compile(r"[\w-]{43}\s*", re.ASCII)


class WrongBytes(Exception):
    """A file is not the locked one: the message has both digests."""

    def __init__(self, path: str, expected: str, got: str, size: int, where: str) -> None:
        super().__init__(f"{path}: expected sha256 {expected}, got {got} ({size} bytes) from {where}.")


def default_folder() -> Path:
    """Where the depot is unless the user says otherwise. Raises UsageError where there is no home."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError as error:  # neither HOME nor an entry in passwd, as in some containers
        raise UsageError(
            "this user has no home folder, so there is no place for a depot by default.",
            "Name a folder with --depot.",
        ) from error
    return Path(cache) / "lemonade-deploy" / "depot"


def marked(folder: Path) -> bool:
    """Whether this kit made *folder*: its mark is there, or (an older depot) its token or chunks."""
    if (folder / MARK).is_file():
        return True
    try:
        return bool(_OWN_TOKEN.fullmatch((folder / TOKEN).read_text(encoding="ascii")))
    except (OSError, UnicodeDecodeError):
        return any(folder.glob(f"vllm*-gfx*/{depot_index.NAME}"))


@contextmanager
def held(folder: Path, verb: str) -> Iterator[None]:
    """Mark *folder* as a depot and be the only one that changes it.

    Raises FetchError where another process does, or where the disk gets full; OSError.
    """
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(folder / MARK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                who = stream.read(200).strip() or "another process"
                raise FetchError(
                    f"{folder}: {who} is at work in it.", "Wait until it is done, then run this again."
                ) from error
            stream.truncate(0)
            stream.write(f"`depot {verb}` (process {os.getpid()})\n")
            stream.flush()
            try:
                yield
            finally:
                stream.seek(0)
                stream.truncate()


def free(folder: Path) -> int:
    """Free bytes at the folder, or at the nearest one above it that is there."""
    places = (folder.absolute(), *folder.absolute().parents)
    return shutil.disk_usage(next(place for place in places if place.is_dir())).free


def demand(folder: Path, needed: int) -> None:
    """Raise FetchError where *folder* has not *needed* bytes left."""
    if needed > (left := free(folder)):
        raise FetchError(
            f"{folder}: {needed:,} bytes are needed, {left:,} are free.",
            "Make room (`lemonade-deploy depot gc` removes what the lock file does not name), or name a "
            "folder on another disk.",
        )


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn "No space left on device" into the file system's numbers (FetchError)."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FetchError(
            f"{folder}: the disk (or its quota) is full, {free(folder):,} bytes are free.",
            "Make room and run the same command again.",
        ) from error


def digest_of(path: Path) -> str:
    """The sha256 of a file. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def has(path: Path, size: int, sha256: str = "") -> bool:
    """Whether a file of that size is there; with *sha256* also that it has these bytes."""
    if not path.is_file() or path.stat().st_size != size:
        return False
    return not sha256 or digest_of(path) == sha256


def index_of(folder: Path, release: Release, compare: bool = False) -> Index | None:
    """The index of a release whose chunks are all there with their sizes, or None.

    *compare*: also with their digests (reads all of them).
    """
    place = folder / release.tag
    try:
        index = depot_index.parse((place / depot_index.NAME).read_text(encoding="utf-8"), release)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return None
    whole = all(
        has(place / chunk.name, chunk.size, chunk.sha256 if compare else "") for chunk in index.chunks
    )
    return index if whole else None


def holds_something(folder: Path) -> bool:
    """Whether any finished file is there to be served: of a release, or a package."""
    return any(
        path.is_file() and path.parent.name != INCOMING and not path.name.endswith((PARTIAL, PROGRESS))
        for path in (*folder.glob("*/*"), *folder.glob(f"{MAINLINE}/*/*"))
    )


def files_below(path: Path) -> list[Path]:
    """All files below a folder."""
    return [file for file in sorted(path.rglob("*")) if file.is_file()]


def size_of(path: Path) -> int:
    """Bytes in the files below *path*, or of the file."""
    return sum(file.stat().st_size for file in ([path] if path.is_file() else files_below(path)))
