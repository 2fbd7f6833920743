# SPDX-License-Identifier: Apache-2.0
"""How far a module is, in a file on the host: a module cannot speak while it works.

Its action plugin reads the file meanwhile (plugin_utils/watched.py). Nothing depends on it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Iterator

from . import paths
from .host import Host

INTERVAL = 1.0  # s between two writes
_MB, _GB = 1e6, 1e9


def say(host: Host, text: str) -> None:
    """Tell one line, readable by all: no secrets. What cannot be written is not told."""
    real = host.path(paths.PROGRESS)
    with contextlib.suppress(OSError):
        # No fsync: it would make a lay-down wait for all that is on its way to the same disk.
        os.makedirs(os.path.dirname(real), exist_ok=True)
        os.chmod(os.path.dirname(real), 0o755)  # noqa: S103  whatever root's umask: the ssh user reads it
        handle = os.open(real + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            os.fchmod(handle, 0o644)
            stream.write(" ".join(text.split()) + "\n")
        os.replace(real + ".new", real)


@contextlib.contextmanager
def told(host: Host, really: bool = True) -> Iterator[None]:
    """A piece of work: before it (a killed run's last line) and afterwards nothing is told.

    Not *really*: nothing is touched.
    """
    _hush(host, really)
    try:
        yield
    finally:
        _hush(host, really)


def _hush(host: Host, really: bool) -> None:
    with contextlib.suppress(OSError):
        if really:
            os.unlink(host.path(paths.PROGRESS))


def bytes_told(
    host: Host, what: str, pieces: Generator[bytes, None, None], done: int, total: int | None
) -> Generator[bytes, None, None]:
    """*pieces*, while it is told how far they are; *done* bytes of *total* were there before."""
    began = last = time.monotonic()
    first = done
    with contextlib.closing(pieces):
        for piece in pieces:
            yield piece
            done += len(piece)
            now = time.monotonic()
            if now - last >= INTERVAL:
                last = now
                say(host, f"{what}: {far(done, total, (done - first) / (now - began))}")


def far(done: int, total: int | None, rate: float) -> str:
    """Bytes, share, rate (bytes/s) and what remains. More than *total* is no more than all."""
    if not total:
        return f"{done / _GB:.2f} GB, {rate / _MB:.0f} MB/s"
    done = min(done, total)
    left = (total - done) / rate if rate else 0.0
    share = 100 * done / total
    return (
        f"{done / _GB:.2f} of {total / _GB:.2f} GB, {share:.0f} %, {rate / _MB:.0f} MB/s, {left:.0f} s left"
    )
