# SPDX-License-Identifier: Apache-2.0
"""Faults of an AMD GPU in the kernel's log since a moment of this boot.

Used by the suite, and by whoever wants to know the same of a host: give it something that runs a shell
command there as root. Lines as they were reported: ROCm#5890, #6139, #5724, ollama#13589.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# A command's standard output; a command that fails says nothing.
Run = Callable[[str], str]

# Both, newest systemd first; dmesg's clock starts with the boot, too.
JOURNAL = "journalctl -k -b -o json --no-pager -q 2>/dev/null"
RING = "dmesg --json --time-format=raw 2>/dev/null || dmesg -J 2>/dev/null"

_FAULT = re.compile(
    r"""
    \[(?:gfx|mm)hub\d*\].*page\ fault        # amdgpu 0000:c6:00.0: amdgpu: [gfxhub] page fault (src_id:0 …
  | G?C?VM_L2_PROTECTION_FAULT               # GCVM_L2_PROTECTION_FAULT_STATUS:0x00800932
  | Faulty\ UTCL2\ client\ ID
  | MES\ failed\ to\ respond                 # MES failed to respond to msg=REMOVE_QUEUE
  | MES\ might\ be\ in\ unrecoverable\ state
  | amdgpu.*\bGPU\ reset\b                   # begin!, succeeded, failed
  | Freeing\ queue\ vital\ buffer|queue\ evicted
  | amdgpu.*\bring\ \S+\ timeout             # ring gfx_0.0.0 timeout, signaled seq=…
  | VRAM\ is\ lost
  | amdgpu.*(?:device\ wedged|HW\ exception|hang\ detected)
    """,
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Line:
    """A line of the kernel's log. ``at`` is in microseconds since the boot."""

    at: int
    text: str


@dataclass(frozen=True)
class Log:
    """What could be read. ``readable`` is False where nothing could: then no fault is no proof."""

    readable: bool
    lines: tuple[Line, ...] = ()


def read(run: Run) -> Log:
    """The kernel's log of this boot: from the journal, else from the kernel's own buffer."""
    for command, parse in ((JOURNAL, _journal), (RING, _ring)):
        lines = tuple(parse(run(command)))
        if lines:
            return Log(True, lines)
    return Log(False)


def _journal(text: str) -> Iterable[Line]:
    for row in text.splitlines():
        try:
            entry = json.loads(row)
        except ValueError:
            continue  # a line that was cut off
        message = entry.get("MESSAGE")
        if isinstance(message, list):  # odd bytes
            message = bytes(message).decode("utf-8", "replace")
        if isinstance(message, str):
            yield Line(int(entry.get("__MONOTONIC_TIMESTAMP") or 0), message)


def _ring(text: str) -> Iterable[Line]:
    try:
        entries = json.loads(text or "{}").get("dmesg", [])
    except ValueError:
        return
    for entry in entries:
        yield Line(int(float(entry.get("time") or 0) * 1_000_000), str(entry.get("msg", "")))


def faults(log: Log, since: int = 0) -> list[str]:
    """The lines that speak of a fault, from *since* (microseconds since the boot) on."""
    return [line.text for line in log.lines if line.at >= since and _FAULT.search(line.text)]
