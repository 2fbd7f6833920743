# SPDX-License-Identifier: Apache-2.0
"""Announcements of steps that take long: on stderr, with the time they took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """One line for people."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Say what begins, then how long it took in seconds."""
    say(f"{text} …")
    begun = time.monotonic()
    yield
    say(f"{text}: done in {time.monotonic() - begun:.1f} s")
