# SPDX-License-Identifier: Apache-2.0
"""Read a tar archive member by member from a stream of chunks.

tarfile needs ~0.15 ms a member, seconds for the 45,000 files of a bundle, and keeps every
member in memory. This reads what GNU tar, bsdtar and Python write: ustar, GNU long names,
pax. Format: POSIX.1-2001 pax; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from .gunzip import ArchiveError

BLOCK = 512
_ZERO = bytes(BLOCK)
_META_MAX = 1 << 20  # a long name or a pax header is never larger
_TIME_MAX = 1 << 33  # s since 1970: the year 2242; what a file system can keep ends soon after it

FILE, FOLDER, SYMLINK, HARDLINK = "f", "d", "l", "h"
_KINDS = {b"0": FILE, b"\0": FILE, b"7": FILE, b"1": HARDLINK, b"2": SYMLINK, b"5": FOLDER}
_REFUSED = {b"3": "a character device", b"4": "a block device", b"6": "a fifo", b"S": "a sparse file"}


@dataclass
class Member:
    """One member as the archive says it; ``size`` in bytes, ``mtime`` in seconds (0 to 2**33)."""

    path: str
    kind: str
    mode: int
    size: int
    mtime: int
    target: str = ""


class Stream:
    """Chunks seen as a run of bytes that can be taken in exact amounts."""

    def __init__(self, chunks: Iterable[bytes], start: int = 0) -> None:
        self._chunks = iter(chunks)
        self._view = memoryview(b"")
        self._seen = start  # bytes of the archive that came, with those before *start*

    @property
    def position(self) -> int:
        """Bytes of the archive before the next one to be taken."""
        return self._seen - len(self._view)

    def pieces(self, amount: int) -> Iterator[memoryview]:
        """The next *amount* bytes, in as few pieces as the chunks allow."""
        while amount:
            if not self._view:
                self._view = memoryview(self._next())
                continue
            piece = self._view[:amount]
            self._view = self._view[amount:]
            amount -= len(piece)
            yield piece

    def exact(self, amount: int) -> bytes:
        """The next *amount* bytes as one."""
        if len(self._view) >= amount:
            piece = bytes(self._view[:amount])
            self._view = self._view[amount:]
            return piece
        return b"".join(self.pieces(amount))

    def drain(self) -> None:
        """Read to the end (what checks a digest or a CRC as it passes then does)."""
        self._view = memoryview(b"")
        for chunk in self._chunks:
            self._seen += len(chunk)

    def _next(self) -> bytes:
        for chunk in self._chunks:
            self._seen += len(chunk)
            return chunk
        raise ArchiveError("tar: the archive ends too early")


def members(stream: Stream) -> Generator[tuple[Member, Iterator[memoryview]], None, None]:
    """Every member with its content; content that is not read is skipped. Raises ArchiveError."""
    extra: dict[str, str] = {}
    while True:
        block = stream.exact(BLOCK)
        if block == _ZERO:
            stream.drain()
            return
        size, kind = _checked(block), block[156:157]
        if kind in b"LKxg":
            if size > _META_MAX:
                raise ArchiveError(f"tar: a header of {size} bytes")
            text = stream.exact(size)
            stream.exact(-size % BLOCK)
            extra.update(_meta(kind, text))
            continue
        member = _member(block, kind, size, extra)
        extra = {}
        content = stream.pieces(member.size)
        yield member, content
        for _piece in content:
            pass
        stream.exact(-member.size % BLOCK)


def _checked(block: bytes) -> int:
    """The size field, after the header's checksum was compared."""
    said = _number(block[148:156])
    if sum(block) - sum(block[148:156]) + 8 * 32 != said:
        raise ArchiveError("tar: a header's checksum is wrong")
    size = _number(block[124:136])
    if size < 0:
        raise ArchiveError(f"tar: a size of {size} bytes")
    return size


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU's base-256 for what octal digits can't hold; below zero in two's complement
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        return value - (1 << 8 * len(field) - 1) if field[0] & 0x40 else value
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError as error:
        raise ArchiveError(f"tar: {field!r} is not an octal number") from error


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _meta(kind: bytes, text: bytes) -> dict[str, str]:
    if kind in b"LK":
        return {"path" if kind == b"L" else "linkpath": _text(text)}
    return _pax(text) if kind == b"x" else {}


def _pax(text: bytes) -> dict[str, str]:
    """The records `LENGTH KEY=VALUE\\n` of a pax header."""
    records: dict[str, str] = {}
    while text:
        length, _blank, _rest = text.partition(b" ")
        if not length.isdigit() or len(length) > 7 or not len(length) < int(length) <= len(text):
            raise ArchiveError("tar: a pax header is malformed")
        record, text = text[len(length) + 1 : int(length) - 1], text[int(length) :]
        key, _equals, value = record.partition(b"=")
        records[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
    if any(key.startswith("GNU.sparse") for key in records):
        raise ArchiveError("tar: a sparse file, which is refused")
    return records


def _member(block: bytes, kind: bytes, size: int, extra: dict[str, str]) -> Member:
    path = extra.get("path") or _text(block[0:100])
    if "path" not in extra and block[257:263] == b"ustar\0" and block[345]:
        path = f"{_text(block[345:500])}/{path}"
    if kind not in _KINDS:
        raise ArchiveError(f"{path}: {_REFUSED.get(kind, f'a member of type {kind!r}')}, which is refused")
    what = _KINDS[kind]
    if what == FILE and path.endswith("/"):
        what = FOLDER
    try:
        size = int(extra.get("size", size))
        mtime = int(float(extra.get("mtime", _number(block[136:148]))))
    except (ValueError, OverflowError) as error:
        raise ArchiveError(f"{path}: a pax header holds no number: {error}") from error
    if size < 0:
        raise ArchiveError(f"{path}: a size of {size} bytes")
    target = extra.get("linkpath") or _text(block[157:257])
    mtime = min(max(mtime, 0), _TIME_MAX)
    # Links carry no content; some writers still record the target's size.
    return Member(path, what, _number(block[100:108]), size if what == FILE else 0, mtime, target)
