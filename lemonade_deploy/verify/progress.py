# SPDX-License-Identifier: Apache-2.0
"""What is seen while the suite runs: a live line on a terminal, in a pipe a line now and then."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lemonade_deploy.console import STYLES, clock
from lemonade_deploy.verify.verdict import TestResult

HEARTBEAT = 5.0  # s between two lines of a host in a pipe


@dataclass
class State:
    """How far a host is. ``count`` is 0 until the suite has counted its tests."""

    phase: str = ""
    count: int = 0
    done: int = 0
    running: str = "connecting"
    since: float = field(default_factory=time.monotonic)
    ended: bool = False

    def line(self, host: str, seconds: float) -> str:
        """For people; ``seconds`` since verify began."""
        of = f" of {self.count}" if self.count else ""
        phase = f"{self.phase}: " if self.phase else ""
        took = time.monotonic() - self.since
        waits = f" ({took:.0f} s)" if took >= 1 else ""
        return f"{clock(seconds):>7}  {host}  {phase}{self.done}{of} tests  {self.running}{waits}"


class Progress(AbstractContextManager["Progress"]):
    """Told by the fleet from several threads; with *every* each result is a line."""

    def __init__(self, console: Console, every: bool = False, heartbeat: float = HEARTBEAT) -> None:
        self._console = console
        self._every = every
        self._began = time.monotonic()
        self._states: dict[str, State] = {}
        self._lock = threading.Lock()
        self._live = (
            Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._draw)
            if console.is_terminal
            else None
        )
        self._heartbeat = heartbeat
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        else:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._live:
            self._live.stop()

    def begin(self, host: str, phase: str) -> None:
        """A run of the suite, or a step between two, begins."""
        with self._lock:
            self._states[host] = State(phase)

    def counted(self, host: str, count: int) -> None:
        """The suite has *count* tests."""
        self._states[host].count = count

    def running(self, host: str, name: str) -> None:
        """A test begins."""
        state = self._states[host]
        state.running, state.since = name, time.monotonic()

    def ended(self, host: str, result: TestResult) -> None:
        """A test ended."""
        self._states[host].done += 1
        if self._every or result.bad or result.warning:
            style = STYLES["failed"] if result.bad else STYLES["changed"] if result.warning else ""
            outcome = "warning" if result.warning and not result.bad else result.outcome
            self._console.print(Text(f"{host}  {outcome:<7} {result.name}", style))

    def finished(self, host: str) -> None:
        """Nothing more will come of the host."""
        self._states[host].ended = True

    def lines(self) -> list[str]:
        """The hosts that are at work."""
        seconds = time.monotonic() - self._began
        with self._lock:
            working = [(name, state) for name, state in self._states.items() if not state.ended]
        return [state.line(name, seconds) for name, state in working]

    def _draw(self) -> Text:
        room = max(1, self._console.height - 2)
        lines = self.lines()
        more = [f"… and {len(lines) - room} more hosts"] if len(lines) > room else []
        return Text("\n".join([*lines[:room], *more]), no_wrap=True, overflow="ellipsis")

    def _beat(self) -> None:
        while not self._over.wait(self._heartbeat):
            for line in self.lines():
                self._console.print(Text(line))
