# SPDX-License-Identifier: Apache-2.0
"""Gzip as a stream of chunks, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable

CHUNK = 1 << 20
_GZIP = 31  # zlib's window bits for "gzip header and trailer"


class ArchiveError(Exception):
    """The archive itself is malformed, truncated, or holds what must not be unpacked."""


def inflate(chunks: Iterable[bytes]) -> Generator[bytes, None, None]:
    """The content of a gzip file given in chunks; several members in a row are one.

    Raises ArchiveError, but first reads *chunks* to their end: when these are verified as
    they pass, a wrong digest is the better explanation of broken gzip and is raised there.
    """
    source = iter(chunks)
    try:
        yield from _inflate(source)
    except zlib.error as error:
        for _chunk in source:
            pass
        raise ArchiveError(f"not a sound gzip stream: {error}") from error


def _inflate(chunks: Iterable[bytes]) -> Generator[bytes, None, None]:
    inflater = zlib.decompressobj(_GZIP)
    begun = False
    for chunk in chunks:
        data = chunk
        while data:
            if inflater.eof:
                data = data.lstrip(b"\0") if not begun else data
                if not data:
                    break
                inflater = zlib.decompressobj(_GZIP)
            begun = True
            out = inflater.decompress(data, CHUNK)
            if out:
                yield out
            if inflater.eof:
                data, begun = inflater.unused_data, False
            else:
                data = inflater.unconsumed_tail
    while not inflater.eof:
        # Output that zlib still holds because of the limit on one call.
        out = inflater.decompress(inflater.unconsumed_tail, CHUNK)
        if not out:
            raise ArchiveError("gzip: the stream ends too early")
        yield out
