# SPDX-License-Identifier: Apache-2.0
"""From ansible-runner's events to what each host did.

Results are recognised by their keys (CONTRACT of our modules: ``changes``, ``failure``,
``gpu`` …), never by a task's name or by Ansible's human text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from lemonade_deploy.builtin_changes import changes_of_builtin
from lemonade_deploy.remedies import remedy_for
from lemonade_deploy.results import Failure, HostRun, Step

_RESULT_EVENTS = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_skipped": "skipped",
}


PROGRESS = "[PROGRESS] "  # as plugin_utils/watched.py writes it


class Listener(Protocol):
    """What a console is told while a run goes on."""

    def begin(self) -> None:
        """Ansible runs. Threads may be started from here on: before, it is forked."""

    def started(self, host: HostRun) -> None:
        """A host began the step in ``host.step``."""

    def ended(self, host: HostRun, step: Step, outcome: str, changes: list[dict[str, str]]) -> None:
        """A step ended: ``outcome`` is ok, changed, failed, unreachable or skipped."""

    def progress(self, host: HostRun) -> None:
        """The host's step said how far it is (``host.step.detail``)."""

    def notice(self, text: str) -> None:
        """A line that belongs to no host (Ansible's own warnings and errors)."""


class Collector:
    """The ``event_handler`` of a run.

    It returns False, so ansible-runner keeps no event files; ``Runner.stats`` is None then,
    which is why the statistics are taken from the events here.
    """

    def __init__(
        self,
        hosts: list[str],
        listener: Listener,
        limits: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self.hosts: dict[str, HostRun] = {name: HostRun(name) for name in hosts}
        self.ansible_pid: int | None = None
        self.playbook_started = False
        self.stats: dict[str, Any] | None = None
        self.output: list[str] = []
        self._listener = listener
        self._limits = limits or {}

    def __call__(self, event: Mapping[str, Any]) -> bool:
        """Take one event."""
        kind = str(event.get("event", ""))
        data = event.get("event_data") or {}
        self.ansible_pid = event.get("pid") or self.ansible_pid
        if kind == "playbook_on_start":
            self._listener.begin()
        elif kind == "playbook_on_play_start":
            self.playbook_started = True
        elif kind == "runner_on_start":
            self._start(data)
        elif kind in _RESULT_EVENTS:
            self._result(data, _RESULT_EVENTS[kind])
        elif kind == "playbook_on_stats":
            self.stats = dict(data)
        elif kind in ("verbose", "warning", "error", "deprecated", "system_warning"):
            self._text(str(event.get("stdout", "")))
        return False

    def _host(self, data: Mapping[str, Any]) -> HostRun:
        name = str(data.get("host"))
        return self.hosts.setdefault(name, HostRun(name))

    def _progress(self, text: str) -> bool:
        """Take ``[PROGRESS] HOST how far it is``, which a task of ours says; whether it was one."""
        told = text.strip().removeprefix(PROGRESS)
        if told == text.strip():
            return False
        name, _space, detail = told.partition(" ")
        host = self.hosts.get(name)
        if host is not None and host.step is not None:
            host.step.detail = " ".join(detail.split())
            self._listener.progress(host)
        return True

    def _text(self, text: str) -> None:
        if self._progress(text):
            return
        if text.strip() and "User interrupted execution" not in text:  # we say that ourselves
            self.output.append(text)
            # What is said before a play starts ends in UsageError, which tells it.
            if self.playbook_started or "ERROR" not in text:
                self._listener.notice(text)

    def _start(self, data: Mapping[str, Any]) -> None:
        if str(data.get("task_action")).endswith("validate_argument_spec"):
            return  # on the controller, in no time: not a step worth a line
        host = self._host(data)
        layer = layer_of(data)
        host.step = Step(layer, task_of(data), limit=self._limits.get(host.name, {}).get(layer))
        host.last = host.step
        host.began = host.began or host.step.started
        self._listener.started(host)

    def _result(self, data: Mapping[str, Any], outcome: str) -> None:
        host = self._host(data)
        layer, result = layer_of(data), data.get("res") or {}
        step = host.step or Step(layer, task_of(data))
        if outcome != "skipped":
            host.tasks += 1
        changes = [] if outcome == "skipped" else _changes(data, layer, result)
        fresh = [change for change in changes if host.add_change(change)]
        _facts(host, result)
        if outcome in ("failed", "unreachable") and not data.get("ignore_errors"):
            host.unreachable = outcome == "unreachable"
            host.failure = _failure(layer, task_of(data), result)
        host.diffs.extend(diffs_of(result))
        for note in result.get("notes") or []:
            self._listener.notice(f"[WARNING] {host.name}: {note}")
        host.step, host.ended = None, time.monotonic()
        shown = "changed" if fresh and outcome == "ok" else outcome
        self._listener.ended(host, step, shown, fresh)

    def finish(self, interrupted: bool) -> None:
        """After the run: drop rescued failures, and name hosts that did not get to the end."""
        if self.stats is not None:
            for host in self.hosts.values():
                lost = self.stats.get("failures", {}).get(host.name) or self.stats.get("dark", {}).get(
                    host.name
                )
                if host.failure and not lost and not host.reboot_required:
                    host.failure, host.unreachable = None, False
            return
        for host in self.hosts.values():
            if host.failure is None and (host.last or not interrupted):
                layer, task = (host.last.layer, host.last.task) if host.last else ("play", "")
                message = (
                    "interrupted by the user" if interrupted else "Ansible ended before this host was done"
                )
                host.failure = Failure(
                    layer, task, message, "Run the same command again: it goes on from here."
                )


def layer_of(data: Mapping[str, Any]) -> str:
    """The role's short name, or ``play`` for a task outside of roles."""
    return str(data.get("role") or "play").rsplit(".", 1)[-1]


def task_of(data: Mapping[str, Any]) -> str:
    """The task's name without the role's prefix."""
    name = str(data.get("task") or data.get("task_action") or "")
    return name.rsplit(" : ", 1)[-1]


def _changes(data: Mapping[str, Any], layer: str, result: Mapping[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for item in result.get("results") or [result]:
        if not isinstance(item, Mapping):
            continue
        own = item.get("changes")
        if isinstance(own, list) and all(isinstance(change, Mapping) for change in own):
            found.extend(dict(change) for change in own)
        elif item.get("changed"):
            found.extend(changes_of_builtin(layer, str(data.get("task_action")), task_of(data), item))
    return found


def diffs_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The diffs of a result, loop items included."""
    diffs: list[dict[str, Any]] = []
    for item in [result, *(result.get("results") or [])]:
        diff = item.get("diff") if isinstance(item, Mapping) else None
        for one in diff if isinstance(diff, list) else [diff]:
            if isinstance(one, Mapping) and ("before" in one or "after" in one or "prepared" in one):
                diffs.append(dict(one))
    return diffs


def _facts(host: HostRun, result: Mapping[str, Any]) -> None:
    """Take the keys our modules return (the table stands in docs/command.md)."""
    told = (result.get("ansible_facts") or {}).get("lemonade_deploy")
    if isinstance(told, Mapping):
        facts = told.get("facts") or {}
        host.facts = dict(facts) or host.facts
        host.decision = told.get("decision") or host.decision
        host.findings.extend(told.get("findings") or [])
        host.gpu_before = host.gpu = list(facts.get("gpu") or facts.get("gpus") or [])
        host.kernel = facts.get("kernel_running") or facts.get("kernel") or host.kernel
    if isinstance(result.get("findings"), list):
        known = {(f.get("id"), f.get("found")) for f in host.findings}
        host.findings.extend(f for f in result["findings"] if (f.get("id"), f.get("found")) not in known)
    if isinstance(result.get("gpu"), list):
        host.gpu = result["gpu"]
    if isinstance(result.get("kernel"), str):
        host.kernel = result["kernel"]
    host.rebooted = host.rebooted or bool(result.get("rebooted"))
    if result.get("reboot_required"):
        host.reboot_required = [str(why) for why in result.get("reboot") or ["a change takes effect at boot"]]
    for key in ("bundle", "inference", "bench"):
        if isinstance(result.get(key), Mapping):
            setattr(host, key, dict(result[key]))
    if isinstance(result.get("endpoint"), str):
        host.endpoint = result["endpoint"]
    if isinstance(result.get("load_seconds"), int | float):
        host.load_seconds = float(result["load_seconds"])


def _failure(layer: str, task: str, result: Mapping[str, Any]) -> Failure:
    """Our modules' ``failure``, or what a builtin module's result says."""
    broken = [r for r in result.get("results") or [] if isinstance(r, Mapping) and r.get("failed")]
    source = broken[0] if broken else result
    told = source.get("failure")
    if isinstance(told, Mapping):
        return Failure(
            str(told.get("layer") or layer),
            task,
            str(told.get("message") or source.get("msg") or ""),
            str(told.get("remedy") or ""),
        )
    message = _message(source)
    return Failure(layer, task, message, remedy_for(message))


def _message(result: Mapping[str, Any]) -> str:
    if result.get("censored"):
        return str(result["censored"])
    parts = [str(result.get("msg") or "").strip().removeprefix("Task failed: ")]
    for key in ("stderr", "module_stderr", "stdout", "module_stdout"):
        text = str(result.get(key) or "").strip()
        if text and not (parts[0] and parts[0] != "non-zero return code" and "MODULE" not in parts[0]):
            parts.append("\n".join(text.splitlines()[-8:]))
            break
    return "\n".join(part for part in parts if part) or "failed without a message"
