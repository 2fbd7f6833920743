# SPDX-License-Identifier: Apache-2.0
"""What lemond and its engine wrote to the journal, and the line in it that tells why a load failed.

Every such failure reaches lemond's client as "vllm-server failed to start within timeout".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .gpu_check import PREFIX as GPU_CHECK
from .host import Host
from .load_failures import STILL_STARTING, Signature, match
from .scrub import scrub

# 2026-11-30 11:29:24.310 [Error] (Process) text
_LEMOND = re.compile(r"^\S+ \S+ \[(?P<level>\w+)\] \((?P<source>\w+)\) ?(?P<text>.*)$")
# (EngineCore pid=797) ERROR 11-30 11:29:24 [core.py:1510] text
_VLLM = re.compile(
    r"^(?:\([\w. ]+pid=\d+\) ?)?(?:(?P<level>[A-Z]+) \d\d-\d\d [\d:]{8} \[[^\]]*\] ?)?(?P<text>.*)$"
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)(: .+|$)")
_GENERIC = re.compile(
    r"Engine core initialization failed|See root cause above|WorkerProc initialization failed"
)
_FAILED_IMPORT = re.compile(r"Failed to import from vllm\._\w+: .*")
_START = "Starting vllm-server"  # lemond tries twice; the last try is the one that counts
_DIED = "process has terminated with exit code"
_TRIM = 400  # characters of a line that are shown


@dataclass(frozen=True)
class Diagnosis:
    """The line that tells why, and what is known about such a line (None: nothing)."""

    line: str
    signature: Signature | None

    def sentence(self) -> str:
        """For the failure message."""
        return f"{self.signature.cause}: {self.line}" if self.signature else self.line


def parse(journal: str) -> list[str]:
    """Messages of ``journalctl -o json``. A message with odd bytes is a list of numbers there."""
    messages = []
    for line in journal.splitlines():
        message = json.loads(line).get("MESSAGE")
        if isinstance(message, list):
            message = bytes(message).decode("utf-8", "replace")
        if message is not None:
            messages.append(str(message))
    return messages


def read(
    host: Host, *, since: float | None = None, last: int | None = None, unit: str = "lemond"
) -> list[str]:
    """The messages of *unit* in the journal, from *since* (seconds since 1970) or the *last* n."""
    # Without --all a line of more than 4096 bytes is null (journalctl(1)), and that may be the exception.
    argv = ["journalctl", "-u", unit, "-o", "json", "--all", "--no-pager", "-q"]
    argv += [f"--since=@{since:.6f}"] if since is not None else []
    argv += [f"--lines={last}"] if last is not None else []
    return parse(host.run(argv).stdout)


def refusals(messages: Iterable[str]) -> list[str]:
    """What the check before the start said, of a service's messages."""
    return [line.removeprefix(GPU_CHECK) for line in messages if line.startswith(GPU_CHECK)]


def service_errors(host: Host, count: int = 3) -> list[str]:
    """The last errors of lemond itself, or why the check before its start refuses."""
    messages = read(host, last=100)
    refused = refusals(messages)
    found = [_LEMOND.match(message) for message in messages]
    errors = [hit["text"].strip() for hit in found if hit and hit["level"] == "Error"]
    if refused and not errors:
        return refused[-1:]
    return [scrub(error)[:_TRIM] for error in errors][-count:]


def diagnose(messages: Sequence[str]) -> Diagnosis | None:
    """The root line of a failed load: a known signature, else the first exception, else lemond's word.

    The last try counts. Where its time ran out before it said why, the one before it tells.
    """
    starts = [index for index, message in enumerate(messages) if _START in message] or [0]
    tries = [messages[at:end] for at, end in zip(starts, [*starts[1:], len(messages)], strict=True)]
    for attempt in reversed(tries):
        found = _said_why(attempt)
        if found is not None:
            return found
    attempt = tries[-1]
    # What the engine writes to its stderr has lemond's level Error, too: warnings of vLLM are no causes.
    errors = [hit for hit in map(_LEMOND.match, attempt) if hit and hit["level"] == "Error"]
    own = [hit["text"] for hit in errors if hit["source"] != "Process"]
    for line in own:
        signature = match(line)
        if signature:
            return Diagnosis(_shown(line), signature)
    if any(STILL_STARTING.pattern.search(line) for line in own) and not any(_DIED in m for m in attempt):
        return Diagnosis(_shown(_last_words(attempt) or own[0]), STILL_STARTING)
    return Diagnosis(_shown(own[0]), None) if own else None


def diagnose_vllm(messages: Iterable[str]) -> Diagnosis | None:
    """The same of vLLM's own service: its lines stand there without lemond's head."""
    return diagnose([f"- - [Info] (Process) {message}" for message in messages])


def _said_why(attempt: Sequence[str]) -> Diagnosis | None:
    """What the engine itself said in a try."""
    engine = list(_engine_lines(attempt))
    exceptions = [line for line in engine if _EXCEPTION.match(line) and not _GENERIC.search(line)]
    for line in (*exceptions, *engine, *_failed_imports(attempt)):
        signature = match(line)
        if signature:
            return Diagnosis(_shown(line), signature)
    return Diagnosis(_shown(exceptions[0]), None) if exceptions else None


def _failed_imports(messages: Iterable[str]) -> Iterable[str]:
    """vLLM only warns where its own compiled parts cannot be loaded, and fails later with other words."""
    for message in messages:
        hit = _LEMOND.match(message)
        found = _FAILED_IMPORT.search(hit["text"]) if hit and hit["source"] == "Process" else None
        if found:
            yield found[0]


def _shown(line: str) -> str:
    """What a user may see of a line."""
    return scrub(line)[:_TRIM]


def _last_words(messages: Iterable[str]) -> str:
    """The engine's last line of any level, "" where it said nothing."""
    hits = [_LEMOND.match(message) for message in messages]
    said = [hit["text"].strip() for hit in hits if hit and hit["source"] == "Process"]
    return next((line for line in reversed(said) if line), "")


def _engine_lines(messages: Iterable[str]) -> Iterable[str]:
    """What the engine wrote, without lemond's and vLLM's prefixes; warnings are no causes."""
    for message in messages:
        hit = _LEMOND.match(message)
        if hit is None or hit["source"] != "Process":
            continue
        inner = _VLLM.match(hit["text"])
        if inner and inner["level"] not in ("WARNING", "INFO", "DEBUG"):
            yield inner["text"].strip()
