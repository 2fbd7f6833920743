# SPDX-License-Identifier: Apache-2.0
"""Locks between runs on one host: a module that outlives its killed controller is such a run, too."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from .host import Host
from .refusal import Refused


@contextlib.contextmanager
def alone(host: Host, lock: str, wait: float, doing: str) -> Iterator[int]:
    """Hold *lock* (a file below /run; yields its descriptor). It ends with the last process that holds it.

    Raises Refused after *wait* seconds; *doing* says what the other run does.
    """
    os.makedirs(host.path("/run"), exist_ok=True)
    handle = os.open(host.path(lock), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + wait
        while not _locked(handle):
            if time.monotonic() > deadline:
                raise Refused(
                    f"Another run has been {doing} on this host for {wait:.0f} s.",
                    "Wait for it, or end it (see `ps`), then run the same command again.",
                )
            time.sleep(0.2)  # flock has no time limit of its own
        yield handle
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
