# SPDX-License-Identifier: Apache-2.0
"""Planned misbehaviour of the lab's web server, for tests and for trying out what a run says.

The list stands in ``www/.faults.json`` and is read anew whenever it changes:
``[{"host": "github.com", "path": "*.part01-of-02.tar.gz", "times": 1, "cut_after": 1000000}]``.
Each entry does one thing: answer with ``status``, break off after ``cut_after`` bytes of the body,
or send at most ``rate`` bytes a second. ``times`` is how many answers it spoils (0: all).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

NAME = ".faults.json"


@dataclass(frozen=True)
class Fault:
    """One planned fault; *path* is a pattern as in the shell, matched against the whole path."""

    host: str
    path: str
    times: int = 0
    status: int | None = None
    cut_after: int | None = None  # bytes
    rate: int | None = None  # bytes a second


def write(www: Path, faults: Iterable[Fault]) -> None:
    """Plan *faults* for the server of *www* (none: behave again); counts begin anew."""
    place = www / NAME
    fresh = place.with_name(NAME + ".new")
    fresh.write_text(json.dumps([asdict(fault) for fault in faults]) + "\n", "utf-8")
    fresh.rename(place)


class Faults:
    """The faults still to be served; used by several threads."""

    def __init__(self, www: Path) -> None:
        self._file, self._lock = www / NAME, threading.Lock()
        self._state: tuple[int, int] | None = None
        self._left: list[tuple[Fault, int]] = []

    def take(self, host: str, path: str) -> Fault | None:
        """The fault for this answer, counted down; None for an honest one."""
        with self._lock:
            self._refresh()
            for number, (fault, left) in enumerate(self._left):
                if fault.host != host or not fnmatchcase(path, fault.path):
                    continue
                if fault.times and left <= 0:
                    continue
                self._left[number] = (fault, left - 1)
                return fault
        return None

    def _refresh(self) -> None:
        try:
            stat = self._file.stat()
        except FileNotFoundError:
            self._state, self._left = None, []
            return
        state = (stat.st_mtime_ns, stat.st_ino)
        if state == self._state:
            return
        self._left = [
            (fault, fault.times)
            for fault in (Fault(**raw) for raw in json.loads(self._file.read_text("utf-8")))
        ]
        self._state = state
