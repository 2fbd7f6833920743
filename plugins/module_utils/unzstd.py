# SPDX-License-Identifier: Apache-2.0
"""zstd frames to their content, by the system's own library.

Python has no zstd before 3.14. The library is on every host of ours: dpkg and apt need it, and
called through ctypes it runs outside the interpreter's lock, with no pipe to copy gigabytes through.
API: zstd.h, the stable part.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Generator
from typing import cast

from .gunzip import ArchiveError

LIBRARY = "libzstd.so.1"
_UNKNOWN = 2**64 - 2  # and above: ZSTD_CONTENTSIZE_ERROR, ZSTD_CONTENTSIZE_UNKNOWN


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(LIBRARY)
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    for name, result, arguments in (
        ("ZSTD_getFrameContentSize", ctypes.c_ulonglong, (pointer, size)),
        ("ZSTD_findFrameCompressedSize", size, (pointer, size)),
        ("ZSTD_decompress", size, (pointer, size, pointer, size)),
        ("ZSTD_isError", ctypes.c_uint, (size,)),
        ("ZSTD_getErrorName", ctypes.c_char_p, (size,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def available() -> bool:
    """Whether this host can unpack zstd."""
    try:
        _library()
    except OSError:
        return False
    return True


def unzstd(frames: bytes, limit: int) -> Generator[bytes, None, None]:
    """The content of each frame; each says its size, at most *limit* bytes. Raises ArchiveError."""
    library, offset = _library(), 0
    whole = ctypes.c_char_p(frames)
    start = ctypes.cast(whole, ctypes.c_void_p).value or 0
    while offset < len(frames):
        here, left = start + offset, len(frames) - offset
        size = library.ZSTD_getFrameContentSize(here, left)
        packed = library.ZSTD_findFrameCompressedSize(here, left)
        if size >= _UNKNOWN or library.ZSTD_isError(packed):
            raise ArchiveError("not a zstd frame that says its size")
        if size > limit:
            raise ArchiveError(f"a zstd frame of {size} bytes where at most {limit} are expected")
        yield cast(bytes, _content(library, here, packed, size))  # nobody changes it any more
        offset += packed


def _content(library: ctypes.CDLL, frame: int, packed: int, size: int) -> bytearray:
    content = bytearray(size)
    if not size:
        return content
    target = (ctypes.c_char * size).from_buffer(content)
    got = library.ZSTD_decompress(target, size, frame, packed)
    if library.ZSTD_isError(got):
        raise ArchiveError(f"not sound zstd: {library.ZSTD_getErrorName(got).decode()}")
    if got != size:
        raise ArchiveError(f"a zstd frame of {got} bytes that says {size}")
    return content
