# SPDX-License-Identifier: Apache-2.0
"""What the suite said about a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_TOKENS = ("model", "content", "finish_reason", "prompt_tokens", "completion_tokens", "seconds")


REMEDY = "`lemonade-deploy site.yml --check` shows what a run would put right."
REMEDY_ABSENT = "Run `lemonade-deploy site.yml` with the same inventory first."


@dataclass(frozen=True)
class TestResult:
    """One test. ``outcome`` is passed, failed, skipped or error (it could not run)."""

    __test__ = False  # pytest shall not take this for a test

    name: str
    outcome: str
    seconds: float
    message: str = ""
    evidence: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def warning(self) -> str:
        """What a test that passed has to say nevertheless."""
        return str(self.properties.get("warning") or "")

    @property
    def bad(self) -> bool:
        """Whether it counts against the host."""
        return self.outcome in ("failed", "error")


@dataclass
class Verdict:
    """All results of a host. ``unreachable``: why none could be had; ``absent``: why there are none."""

    host: str
    tests: list[TestResult] = field(default_factory=list)
    unreachable: str = ""
    absent: str = ""
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """One of ok, failed, unreachable. A host without any result has failed."""
        if self.unreachable:
            return "unreachable"
        good = self.tests and not self.absent and not any(test.bad for test in self.tests)
        return "ok" if good else "failed"

    @property
    def inference(self) -> dict[str, Any] | None:
        """The completion that the suite asked for, in the shape of a run's document."""
        for test in self.tests:
            if "content" in test.properties:
                told = {key: test.properties.get(key) for key in _TOKENS}
                seconds, tokens = told["seconds"], told["completion_tokens"]
                rate = round(tokens / seconds, 2) if seconds and tokens else None
                return {**told, "load_seconds": None, "tokens_per_second": rate}
        return None

    def public(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "failure": self._failure(),
            "inference": self.inference,
            "tests": [
                {
                    "name": test.name,
                    "outcome": test.outcome,
                    "seconds": round(test.seconds, 3),
                    "message": test.message,
                    "evidence": test.evidence if test.bad else "",
                    "warning": test.warning,
                }
                for test in self.tests
            ],
        }

    def _failure(self) -> dict[str, str] | None:
        if self.unreachable:
            message, task = self.unreachable, "connect"
        elif self.absent:
            message, task = self.absent, "look"
        else:
            bad = [test for test in self.tests if test.bad]
            if not bad and self.tests:
                return None
            message = bad[0].message if bad else "no test was run"
            task = bad[0].name if bad else "collect"
        return {
            "layer": "verify",
            "task": task,
            "message": message,
            "remedy": REMEDY_ABSENT if self.absent else REMEDY,
        }
