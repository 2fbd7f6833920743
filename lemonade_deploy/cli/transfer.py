# SPDX-License-Identifier: Apache-2.0
"""Progress of gigabytes: a bar a file on a terminal, else a line now and then."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

HEARTBEAT = 15.0  # seconds between two lines where there is no terminal


def short(name: str, tag_name: str) -> str:
    """What of an asset's name is not the tag: part01-of-02.tar.gz."""
    return name.removeprefix(f"{tag_name}-").removeprefix("x64.")


class Shown:
    """Called with a file's name, its bytes so far, and its size or None; a context manager."""

    def __init__(self, console: Console, tag_name: str) -> None:
        self._console = console
        self._tag = tag_name
        self._tasks: dict[str, TaskID] = {}
        self._said = time.monotonic()
        self._first: dict[str, tuple[float, int]] = {}
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
        )

    def __enter__(self) -> Shown:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, name: str, done: int, size: int | None) -> None:
        """Show it."""
        if self._console.is_terminal:
            if name not in self._tasks:
                self._tasks[name] = self._bar.add_task(short(name, self._tag))
            self._bar.update(self._tasks[name], completed=done, total=size)
            return
        now = time.monotonic()
        began, before = self._first.setdefault(name, (now, done))
        if now - self._said > HEARTBEAT:
            self._said = now
            rate = (done - before) / max(now - began, 0.001)
            left = f", {(size - done) / rate:.0f} s left" if size and rate else ""
            of = f" of {size:,}" if size else ""
            told = f"{short(name, self._tag)}: {done:,}{of} bytes, {rate / 1e6:.1f} MB/s{left}"
            self._console.print(told, markup=False)
