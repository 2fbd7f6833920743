# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, SIGTERM and a closed terminal outside of Ansible's run: unwind, clean up, say so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """The user asked to stop. No KeyboardInterrupt: the parser would make exit code 130 of that."""


def _raise(_signum: int, _frame: FrameType | None) -> None:
    raise Stopped


@contextmanager
def raised() -> Iterator[None]:
    """Within, the signals raise :class:`Stopped`; only the main thread can do that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _raise) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """Within, the signals wait: for what must not be done by halves."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
