# SPDX-License-Identifier: Apache-2.0
"""What is seen while a run goes on: one live line a host, or plain lines in a pipe."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lemonade_deploy.results import HostRun, Step

SIGNS = 15.0  # s between two signs of a host
HEARTBEAT = 30.0  # seconds between two signs of life of a long step in a pipe
STYLES = {
    "ok": "green",
    "changed": "yellow",
    "failed": "bold red",
    "unreachable": "bold red",
    "skipped": "dim",
    "reboot-required": "bold yellow",
}


def clock(seconds: float) -> str:
    """``m:ss``, or ``h:mm:ss`` from an hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Console(Console):
    """A console that falls silent when its reader goes away (``| head``): the run goes on.

    Rich's own way is to end the program, which would leave ansible-playbook behind.
    """

    def on_broken_pipe(self) -> None:
        """Send the rest of the output nowhere."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def console_for(stream: TextIO) -> Console:
    """A rich console; without a terminal there is no colour and no wrapping."""
    if stream.isatty():
        return _Console(file=stream, highlight=False)
    return _Console(file=stream, highlight=False, width=200, soft_wrap=True, no_color=True)


class Display(AbstractContextManager["Display"]):
    """Says nothing; the base of the others."""

    def __init__(self, console: Console, verbosity: int = 0) -> None:
        self.console = console
        self.verbosity = verbosity
        self.plan = False
        self.hosts: list[HostRun] = []
        self._began = time.monotonic()

    def watch(self, hosts: Iterable[HostRun], plan: bool = False) -> None:
        """Be told whose run this is; called before the first event.

        With *plan* changes are shown only with -v: the plan lists them all at the end.
        """
        self.plan, self.hosts, self._began = plan, list(hosts), time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self) -> None:
        """See events.Listener."""

    def started(self, host: HostRun) -> None:
        """See events.Listener."""

    def ended(self, host: HostRun, step: Step, outcome: str, changes: list[dict[str, str]]) -> None:
        """See events.Listener."""

    def progress(self, host: HostRun) -> None:
        """See events.Listener."""

    def notice(self, text: str) -> None:
        """Ansible's own lines: warnings and errors always, the rest with -v."""
        if self.verbosity or any(word in text for word in ("[WARNING]", "[ERROR]", "ERROR!")):
            self.console.print(Text(text.rstrip()))


class PlainDisplay(Display):
    """One line for each thing that happens, with a time; a heartbeat for long steps."""

    def __init__(self, console: Console, verbosity: int = 0, heartbeat: float = HEARTBEAT) -> None:
        super().__init__(console, verbosity)
        self._heartbeat = heartbeat
        self._layers: dict[str, str] = {}
        self._signs: dict[str, float] = {}
        self._beats: dict[str, int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def begin(self) -> None:
        """Start the heartbeat."""
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()

    def _line(self, host: HostRun, text: str) -> None:
        self.console.print(Text(f"{clock(time.monotonic() - self._began):>7}  {host.name}  {text}"))

    def _beat(self) -> None:
        while not self._done.wait(min(1.0, self._heartbeat / 3)):
            self._beat_once()

    def _beat_once(self) -> None:
        for host in self.hosts:
            step = host.step
            count = int(step.elapsed // self._heartbeat) if step else 0
            if step and count > self._beats.get(host.name, 0):
                self._line(host, f"{step.layer}: {step.detail or step.task}: {elapsed(step)}")
            self._beats[host.name] = count

    def progress(self, host: HostRun) -> None:
        """The signs that a task gives of itself, SIGNS apart: who reads a log wants no line every 3 s."""
        if host.step and time.monotonic() - self._signs.get(host.name, -SIGNS) >= SIGNS:
            self._signs[host.name] = time.monotonic()
            self._line(host, f"{host.step.layer}: {host.step.detail}")

    def started(self, host: HostRun) -> None:
        """Name a layer once a host; every task with -v."""
        step = host.step
        if step is None:
            return
        if self.verbosity or self._layers.get(host.name) != step.layer:
            self._line(host, f"{step.layer}: {step.task}")
        self._layers[host.name] = step.layer

    def ended(self, host: HostRun, step: Step, outcome: str, changes: list[dict[str, str]]) -> None:
        """Changes and failures; every result with -v."""
        for change in [] if self.plan and not self.verbosity else changes:
            self._line(host, f"{change['layer']}: {describe(change)}")
        if outcome in ("failed", "unreachable") and host.failure:
            self._line(host, f"{step.layer}: {outcome}: {host.failure.message.splitlines()[0]}")
        elif self.verbosity:
            self._line(host, f"{step.layer}: {step.task}: {outcome} ({step.elapsed:.1f} s)")


class LiveDisplay(Display):
    """One line a host that is redrawn: layer, step, elapsed; changes scroll above it."""

    def __init__(self, console: Console, verbosity: int = 0) -> None:
        super().__init__(console, verbosity)
        self._live = Live(
            console=console,
            refresh_per_second=4,
            transient=True,
            get_renderable=self._draw,
            redirect_stdout=False,
        )

    def begin(self) -> None:
        """Start drawing."""
        self._live.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _draw(self) -> Group:
        # Only the step's words give way on a narrow terminal.
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column(no_wrap=True, justify="right")
        room = max(1, self.console.height - 3)
        order = sorted(self.hosts, key=lambda host: host.step is None)
        for host in order[:room]:
            table.add_row(*_live_row(host))
        parts: list[Table | Text] = [table]
        if len(order) > room:
            parts.append(Text(f"… and {len(order) - room} more hosts", style="dim"))
        working = sum(host.step is not None for host in self.hosts)
        parts.append(
            Text(f"{clock(time.monotonic() - self._began)}  {working} of {len(self.hosts)} at work", "dim")
        )
        return Group(*parts)

    def ended(self, host: HostRun, step: Step, outcome: str, changes: list[dict[str, str]]) -> None:
        """Print what lasts above the live lines."""
        for change in [] if self.plan and not self.verbosity else changes:
            self.console.print(Text.assemble((host.name, "bold"), f"  {change['layer']}: {describe(change)}"))
        if outcome in ("failed", "unreachable") and host.failure:
            text = host.failure.message.splitlines()[0]
            self.console.print(Text(f"{host.name}  {step.layer}: {text}", style="bold red"))
        elif self.verbosity:
            self.console.print(
                Text(f"{host.name}  {step.layer}: {step.task}: {outcome} ({step.elapsed:.1f} s)", "dim")
            )


def _live_row(host: HostRun) -> tuple[Text, Text, Text, Text]:
    if host.step:
        words = host.step.detail or host.step.task
        name, layer, task = Text(host.name, "bold"), Text(host.step.layer, "cyan"), Text(words)
        return name, layer, task, Text(elapsed(host.step))
    status = host.status
    text = "waiting" if status == "skipped" else status
    return Text(host.name, "bold"), Text(""), Text(text, STYLES[status]), Text("")


def elapsed(step: Step) -> str:
    """``2:05`` or ``2:05 of at most 30:00``."""
    limit = f" of at most {clock(step.limit)}" if step.limit else ""
    return f"{clock(step.elapsed)}{limit}"


def describe(change: dict[str, str]) -> str:
    """``object: action (detail)``."""
    detail = f" ({change['detail']})" if change.get("detail") else ""
    return f"{change['object']}: {change['action']}{detail}"


def display_for(stream: TextIO, verbosity: int = 0) -> Display:
    """The display that fits *stream*."""
    console = console_for(stream)
    return LiveDisplay(console, verbosity) if console.is_terminal else PlainDisplay(console, verbosity)
