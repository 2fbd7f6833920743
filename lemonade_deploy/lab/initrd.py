# SPDX-License-Identifier: Apache-2.0
"""Reads an initial ramdisk: concatenated cpio archives (newc), plain or packed."""

from __future__ import annotations

import gzip
import lzma
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

MAGIC = (b"070701", b"070702")
TRAILER = "TRAILER!!!"
_HEADER = 110
_ZSTD = b"\x28\xb5\x2f\xfd"


class DamagedInitrd(ValueError):
    """The kernel would not find its root file system with this archive."""


def read(path: Path) -> dict[str, bytes]:
    """Regular files of an initrd by their path without a leading ``usr/`` (lib is a link there)."""
    files: dict[str, bytes] = {}
    data = path.read_bytes()
    try:
        while data := data.lstrip(b"\0"):
            if data[:6] not in MAGIC:
                data = _unpack(data)
            data = _archive(data, files)
    except (ValueError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise DamagedInitrd(f"{path.name}: {error}") from error
    return files


def _unpack(data: bytes) -> bytes:
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    if data.startswith(b"\xfd7zXZ"):
        return lzma.decompress(data)
    if data.startswith(_ZSTD):
        program = shutil.which("zstd")
        if program is None:
            raise ValueError("an initrd packed with zstd needs the program zstd on this machine")
        done = subprocess.run([program, "-dcq"], input=data, capture_output=True, check=False)
        if done.returncode != 0:
            raise ValueError(done.stderr.decode(errors="replace").strip())
        return done.stdout
    raise ValueError("no cpio archive and no known compression")


def _archive(data: bytes, files: dict[str, bytes]) -> bytes:
    """Read one archive into *files*; what follows it is returned."""
    position = 0
    for name, mode, start, size, following in _members(data):
        position = following
        if mode & 0o170000 == 0o100000 and name != TRAILER:
            files[name.removeprefix("./").removeprefix("usr/")] = data[start : start + size]
    return data[position:]


def _members(data: bytes) -> Iterator[tuple[str, int, int, int, int]]:
    """(name, mode, content's start, its size, next position) until the trailer."""
    position = 0
    while True:
        header = data[position : position + _HEADER]
        if len(header) < _HEADER or header[:6] not in MAGIC:
            raise ValueError("the archive ends in the middle")
        fields = [int(header[6 + 8 * number : 14 + 8 * number], 16) for number in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name_at = position + _HEADER
        start = _aligned(name_at + name_size)
        name = data[name_at : name_at + name_size - 1].decode("utf-8", "surrogateescape")
        position = _aligned(start + size)
        yield name, mode, start, size, position
        if name == TRAILER:
            return


def _aligned(number: int) -> int:
    return -(-number // 4) * 4
