# SPDX-License-Identifier: Apache-2.0
"""What a run has found out about one host, and how it is told in JSON."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lemonade_deploy.exits import Exit

GPU_KEYS = (
    "node",
    "gfx",
    "cu_count",
    "driver",
    "cwsr_size",
    "ctl_stack_size",
    "expected_cwsr_size",
    "expected_ctl_stack_size",
    "cwsr",
)
INFERENCE_KEYS = (
    "model",
    "content",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "load_seconds",
    "seconds",
    "tokens_per_second",
)


@dataclass
class Step:
    """The task a host is at. ``started`` is monotonic; ``limit`` is in seconds, where known.

    ``detail``: how far it is, where the task says so.
    """

    layer: str
    task: str
    started: float = field(default_factory=time.monotonic)
    limit: float | None = None
    detail: str = ""

    @property
    def elapsed(self) -> float:
        """Seconds since this step began."""
        return time.monotonic() - self.started


@dataclass
class Failure:
    """Why a host stopped, in the user's words."""

    layer: str
    task: str
    message: str
    remedy: str = ""

    def public(self) -> dict[str, str]:
        """The JSON form."""
        return {"layer": self.layer, "task": self.task, "message": self.message, "remedy": self.remedy}


@dataclass
class HostRun:
    """Everything collected from one host's events."""

    name: str
    step: Step | None = None
    last: Step | None = None  # the last one begun
    changes: list[dict[str, str]] = field(default_factory=list)
    diffs: list[dict[str, Any]] = field(default_factory=list)
    failure: Failure | None = None
    unreachable: bool = False
    reboot_required: list[str] = field(default_factory=list)
    rebooted: bool = False
    kernel: str | None = None
    gpu_before: list[dict[str, Any]] = field(default_factory=list)
    gpu: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] | None = None
    decision: dict[str, Any] | None = None
    findings: list[dict[str, Any]] = field(default_factory=list)
    bundle: dict[str, Any] | None = None
    endpoint: str | None = None
    inference: dict[str, Any] | None = None
    load_seconds: float | None = None
    bench: dict[str, Any] | None = None
    simulated: list[str] = field(default_factory=list)
    tasks: int = 0
    began: float | None = None
    ended: float | None = None

    @property
    def status(self) -> str:
        """One of ok, changed, failed, unreachable, skipped, reboot-required."""
        if self.unreachable:
            return "unreachable"
        if self.reboot_required:
            return "reboot-required"
        if self.failure:
            return "failed"
        if self.changes or self.rebooted:
            return "changed"
        return "ok" if self.tasks else "skipped"

    @property
    def seconds(self) -> float:
        """Seconds from this host's first task to its last result."""
        if self.began is None:
            return 0.0
        return (self.ended or time.monotonic()) - self.began

    def add_change(self, change: Mapping[str, Any]) -> bool:
        """Note a change once per (layer, object, action); False when it was known."""
        entry = {key: str(change.get(key, "")) for key in ("layer", "object", "action", "detail")}
        known = {(c["layer"], c["object"], c["action"]) for c in self.changes}
        if (entry["layer"], entry["object"], entry["action"]) in known:
            return False
        self.changes.append(entry)
        return True

    def public(self) -> dict[str, Any]:
        """The JSON form of a host in a run."""
        return {
            "status": self.status,
            "changed": [{key: c[key] for key in ("layer", "object", "action")} for c in self.changes],
            "failure": self.failure.public() if self.failure and not self.reboot_required else None,
            "rebooted": self.rebooted,
            "kernel": self.kernel,
            "gpu": [{key: gpu.get(key) for key in GPU_KEYS} for gpu in self.gpu],
            "bundle": _only(self.bundle, ("tag", "path", "digest")),
            "endpoint": self.endpoint,
            "inference": self._inference(),
        }

    def _inference(self) -> dict[str, Any] | None:
        inference = _only(self.inference, INFERENCE_KEYS)
        if inference is not None and inference["load_seconds"] is None:
            inference["load_seconds"] = self.load_seconds
        return inference


def _only(value: Mapping[str, Any] | None, keys: Iterable[str]) -> dict[str, Any] | None:
    return None if not value else {key: value.get(key) for key in keys}


def exit_code(hosts: Iterable[HostRun], check: bool, budget: int = 0) -> Exit:
    """The run's exit code. ``budget`` is how many hosts may fail (unreachable ones count)."""
    statuses = [host.status for host in hosts]
    failed = sum(status in ("failed", "unreachable") for status in statuses)
    if failed:
        # With every host down nothing was achieved, whatever the budget says.
        within = failed <= budget and failed < len(statuses)
        return Exit.PARTIAL if within else Exit.FAILED
    if "reboot-required" in statuses:
        return Exit.REBOOT
    if check and "changed" in statuses:
        return Exit.CHANGES
    return Exit.OK


def parse_budget(text: str, hosts: int) -> int:
    """``3`` or ``10%`` (rounded down) of *hosts* as a number; ValueError otherwise."""
    if text.endswith("%"):
        percent = float(text[:-1])
        if not 0 <= percent <= 100:
            raise ValueError(text)
        return int(hosts * percent / 100)
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number
