# SPDX-License-Identifier: Apache-2.0
"""What keeps amdgpu from loading: told as findings, and why a run does not start with it. Pure.

A line or word that somebody else wrote stays theirs. A run that went on would change the driver and
the kernel, reboot, and end on a box without a GPU: so it stops before, even where amdgpu is loaded at
present (by hand, or from an initramfs older than the line), because the next boot may not load it.
"""

from __future__ import annotations

from collections.abc import Iterator

from .facts import Facts
from .findings import ERROR, REGISTRY, WARNING, Finding, finding
from .refusal import Refused

LINE_REMEDY = "Remove that line, then run again."
WORD_REMEDY = REGISTRY["cmdline-trap"].remedy


def load_blockers(facts: Facts) -> Iterator[Finding]:
    """Findings about modprobe.d lines and words of the command line."""
    for line in facts.blacklists:
        remedy = None if line.left_over else LINE_REMEDY
        yield finding(
            "amdgpu-blacklisted", f"{line.path} line {line.line}: {line.text}", line.path, remedy=remedy
        )
    for option in facts.options:
        if option.effect:
            found = f"{option.path} line {option.line}: {option.text}: {option.effect}"
            severity = ERROR if option.blocks else WARNING
            yield finding("modprobe-option", found, option.path, severity=severity)
    for trap in facts.traps:
        when = "" if trap.running else " (from the next boot on)"
        place = f"{trap.place}: " if trap.line else ""
        yield finding(
            "cmdline-trap",
            f"{place}{trap.word}: {trap.effect}{when}",
            trap.path,
            severity=ERROR if trap.blocks else WARNING,
        )


def why_dark(facts: Facts) -> list[str]:
    """The blockers as reasons why no driver runs a GPU now."""
    reasons = [f"{line.path} line {line.line} says '{line.text}'" for line in facts.blacklists]
    reasons += [f"{item.path} line {item.line} says '{item.text}'" for item in facts.options if item.blocks]
    words = [trap.word for trap in facts.traps if trap.blocks and trap.running]
    return reasons + [f"the command line has {word}" for word in dict.fromkeys(words)]


def blocked(facts: Facts) -> Refused | None:
    """Why nothing may be changed while these lines and words are there; None where nothing is in the way."""
    lines = [f"{line.path} line {line.line} ({line.text})" for line in facts.blacklists if not line.left_over]
    lines += [f"{item.path} line {item.line} ({item.text})" for item in facts.options if item.blocks]
    words = [f"{trap.place} ({trap.word})" for trap in facts.traps if trap.blocks]
    if not lines and not words:
        return None
    remedies = ([LINE_REMEDY] if lines else []) + ([WORD_REMEDY] if words else [])
    found = f"amdgpu is kept from loading by {', '.join(lines + words)}. Nothing was changed."
    return Refused(found, " ".join(remedies))
