# SPDX-License-Identifier: Apache-2.0
"""One ansible-runner run: watched, stopped cleanly, its traces removed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ansible_runner import interface  # type: ignore[import-untyped]

from lemonade_deploy.events import Collector
from lemonade_deploy.prepare import Prepared
from lemonade_deploy.stopping import SIGNALS, held
from lemonade_deploy.vault import Passwords

# Seconds that Ansible gets to end after Ctrl-C before it is killed.
GRACE = 20.0


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only we can read, gone at the end: variables, answers, runner's artifacts."""
    folder: Path | None = None
    try:
        with held():
            folder = Path(tempfile.mkdtemp(prefix="lemonade-deploy-"))  # mode 0700
        yield folder
    finally:
        if folder is not None:
            with held():
                shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Outcome:
    """How ansible-playbook ended."""

    rc: int
    interrupted: bool


class Interrupt:
    """Ctrl-C, SIGTERM and a closed terminal (SIGHUP) while Ansible runs.

    ansible-runner's own cancelling kills the process group, and Ansible's workers are in
    groups of their own: they would go on. So the first signal is passed to ansible-playbook,
    which stops its workers; only a second one, or the end of the grace time, kills.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._since: float | None = None
        self._kill = False

    @property
    def happened(self) -> bool:
        """Whether the user asked to stop."""
        return self._since is not None

    def __call__(self, _signum: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        if self._since is not None or self._collector.ansible_pid is None:
            self._kill = True
        self._since = self._since or time.monotonic()
        if not self._kill:
            self._signal(signal.SIGINT)

    def terminate(self) -> None:
        """End an ansible-playbook that nobody listens to any more."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._collector.ansible_pid is None:
            return
        try:
            os.kill(self._collector.ansible_pid, number)
        except ProcessLookupError:
            return  # it has just ended by itself

    def cancel(self) -> bool:
        """ansible-runner's cancel_callback: True kills."""
        late = self._since is not None and time.monotonic() - self._since > GRACE
        return self._kill or late


@contextmanager
def _handled(interrupt: Interrupt) -> Iterator[None]:
    """Install *interrupt* for SIGINT, SIGTERM and SIGHUP; only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def play(prepared: Prepared, collector: Collector, passwords: Passwords, private: Path) -> Outcome:
    """Run the playbook to its end. Everything found is in *collector*."""
    interrupt = Interrupt(collector)
    arguments = _arguments(prepared, collector, passwords, private)
    ended: Any = None
    with _handled(interrupt):
        try:
            ended = interface.run(cancel_callback=interrupt.cancel, **arguments)
        finally:
            if ended is None:
                interrupt.terminate()
    collector.finish(interrupt.happened)
    return Outcome(ended.rc if isinstance(ended.rc, int) else 1, interrupt.happened)


def _arguments(
    prepared: Prepared, collector: Collector, passwords: Passwords, private: Path
) -> dict[str, Any]:
    request = prepared.request
    # ansible-runner 2.4.3 forgets `settings=` where there is no such file.
    settings = private / "env" / "settings"
    settings.parent.mkdir(mode=0o700, exist_ok=True)
    settings.write_text(json.dumps({"pexpect_timeout": 1, "suppress_output_file": True}), encoding="utf-8")
    return {
        "private_data_dir": str(private),
        "project_dir": str(request.folder),
        "playbook": str(request.playbook),
        "inventory": list(prepared.selection.sources),
        "limit": request.limit,
        "tags": ",".join(request.tags) or None,
        "skip_tags": ",".join(request.skip_tags) or None,
        "forks": prepared.forks,
        "verbosity": max(0, request.verbosity - 1) or None,
        "cmdline": shlex.join(_options(prepared, passwords)) or None,
        "envvars": dict(prepared.environment),
        "passwords": dict(passwords.prompts) or None,
        "event_handler": collector,
        "quiet": True,
        "suppress_env_files": True,  # nothing of the above is written to disk
        "fact_cache_type": "memory",
    }


def _options(prepared: Prepared, passwords: Passwords) -> list[str]:
    request = prepared.request
    options = [name for name, on in (("--check", request.check), ("--diff", request.diff)) if on]
    for path in prepared.extra.files:
        options += ["-e", f"@{path}"]
    return [*options, *prepared.vault.arguments(), *passwords.arguments]


def startup_error(output: list[str]) -> str:
    """What Ansible said when it could not even start a play (its last words, trimmed)."""
    lines = [line.rstrip() for text in output for line in text.splitlines() if line.strip()]
    first = next((n for n, line in enumerate(lines) if "ERROR" in line), max(0, len(lines) - 8))
    return "\n".join(lines[first : first + 14])
