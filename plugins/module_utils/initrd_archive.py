# SPDX-License-Identifier: Apache-2.0
"""An initial ramdisk read to its end: what is in it, and whether it is whole.

Format (kernel's Documentation/driver-api/early-userspace/buffer-format.rst): cpio archives (newc), plain
ones first (microcode, firmware), the last one packed. A cut-off image still begins like a good one, and a
kernel that gets it has no root file system: so it is unpacked to the last byte, in bounded memory.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import IO, Protocol, cast

MAGIC = (b"070701", b"070702")
TRAILER = "TRAILER!!!"
_HEADER = 110
_CHUNK = 1 << 20
_LONGEST = 4096  # bytes of a name (PATH_MAX): a damaged header asks for gigabytes
_PACKERS = (  # first bytes → the program that unpacks them (what mkinitramfs packs with)
    (b"\x1f\x8b", ("gzip", "-dc")),
    (b"\x28\xb5\x2f\xfd", ("zstd", "-dcq")),
    (b"\xfd7zXZ", ("xz", "-dc")),
    (b"\x02\x21\x4c\x18", ("lz4", "-dc")),
    (b"\x04\x22\x4d\x18", ("lz4", "-dc")),
    (b"BZh", ("bzip2", "-dc")),
    (b"\x5d\x00\x00", ("lzma", "-dc")),
    (b"\x89LZO", ("lzop", "-dc")),
)


class Damaged(ValueError):
    """The image is not whole, or not what a kernel takes; the text says where it ends."""


class _Reader(Protocol):
    def read(self, size: int, /) -> bytes:
        """At most *size* bytes; empty at the end."""


class _Stream:
    """Exact reads and skips over a file or a pipe."""

    def __init__(self, source: _Reader) -> None:
        self._source = source
        self._ahead = b""

    def peek(self, size: int) -> bytes:
        while len(self._ahead) < size:
            data = self._source.read(_CHUNK)
            if not data:
                break
            self._ahead += data
        return self._ahead[:size]

    def take(self, size: int) -> bytes:
        if len(self.peek(size)) < size:
            raise Damaged("it ends in the middle of a file")
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def skip(self, size: int) -> None:
        while size > 0:
            step = min(size, _CHUNK)
            self.take(step)
            size -= step

    def skip_zeros(self) -> None:
        while head := self.peek(_CHUNK):
            rest = head.lstrip(b"\0")
            self._ahead = self._ahead[len(head) - len(rest) :]
            if rest:
                return

    def rest(self) -> Iterator[bytes]:
        while data := self.peek(_CHUNK):
            self._ahead = self._ahead[len(data) :]
            yield data


def names(path: str) -> set[str]:
    """Paths of everything in the image at *path*, without a leading ``usr/``. Raises Damaged, OSError."""
    found: set[str] = set()
    with open(path, "rb") as file:
        stream = _Stream(file)
        if not stream.peek(1):
            raise Damaged("it is empty")
        _archives(stream, found)
        if stream.peek(1):
            _packed(stream, found)
    return found


def _archives(stream: _Stream, found: set[str]) -> None:
    """Plain archives, as long as they follow each other."""
    stream.skip_zeros()
    while stream.peek(6) in MAGIC:
        for name in _members(stream):
            found.add(name.removeprefix("./").removeprefix("/").removeprefix("usr/"))
        stream.skip_zeros()


def _members(stream: _Stream) -> Iterator[str]:
    while True:
        header = stream.take(_HEADER)
        if header[:6] not in MAGIC:
            raise Damaged("an archive is broken off")
        try:
            size, length = int(header[54:62], 16), int(header[94:102], 16)
        except ValueError:
            raise Damaged("a file's header is no header") from None
        if length > _LONGEST:
            raise Damaged("a file's name has no end")
        name = stream.take(length)[:-1].decode("utf-8", "surrogateescape")
        stream.skip(-(_HEADER + length) % 4)
        if name == TRAILER:
            return
        stream.skip(size + -size % 4)
        yield name


def _packed(stream: _Stream, found: set[str]) -> None:
    head = stream.peek(6)
    program = next((argv for magic, argv in _PACKERS if head.startswith(magic)), None)
    if program is None:
        raise Damaged(f"what follows is neither an archive nor packed (it begins with {head.hex()})")
    try:
        process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except FileNotFoundError:
        raise Damaged(f"the program {program[0]} that unpacks it is not installed") from None
    import threading

    feeder = threading.Thread(target=_feed, args=(stream, cast("IO[bytes]", process.stdin)), daemon=True)
    feeder.start()
    try:
        inner = _Stream(cast("IO[bytes]", process.stdout))
        before = len(found)
        problem = ""
        try:
            _archives(inner, found)
            if inner.peek(1):
                problem = "its packed part holds no archive"
        except Damaged as damage:
            problem = str(damage)
        for _data in inner.rest():
            pass
        said = cast("IO[bytes]", process.stderr).read().decode("utf-8", "replace").strip()
        if process.wait():
            raise Damaged(f"{program[0]}: {said.splitlines()[-1] if said else 'it cannot be unpacked'}")
        if problem or len(found) == before:
            raise Damaged(problem or "its packed part is empty")
    finally:
        process.kill()
        process.wait()
        feeder.join()
        for pipe in (process.stdout, process.stderr):
            cast("IO[bytes]", pipe).close()


def _feed(stream: _Stream, pipe: IO[bytes]) -> None:
    try:
        with pipe:
            for data in stream.rest():
                pipe.write(data)
    except BrokenPipeError:
        return  # the program ended first: its exit code says why
