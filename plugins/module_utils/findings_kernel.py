# SPDX-License-Identifier: Apache-2.0
"""Findings about what was decided: the kernel that is to run, and the ROCm that goes with it."""

from __future__ import annotations

from collections.abc import Iterator

from . import kernels, paths, rocm_pairs
from .decision import Decision
from .facts import Facts
from .findings import INFO, WARNING, Finding, finding
from .host import OSRELEASE, Host
from .kernel_decision import halves_memory

TABLE = "rocm.docs.amd.com, Strix Halo system optimization, required kernel version"


OLD_HOLD_DAYS = 90


def hold_findings(host: Host, now: float) -> Iterator[Finding]:
    """How long what would bring another kernel has been held. *now*: seconds since 1970."""
    if not host.exists(paths.KERNEL_HOLD):
        return
    from . import kernel_hold

    held = kernel_hold.read(host)
    if held is None or not held.packages:
        return
    days = held.days(now)
    age = "since today" if days == 0 else f"for {days} day{'s' if days > 1 else ''}"
    found = f"held {age}, so that kernel {held.kernel} stays: {', '.join(held.packages)}"
    if days >= OLD_HOLD_DAYS:
        yield finding("kernel-hold", found, paths.KERNEL_HOLD, severity=WARNING)
    else:
        yield finding("kernel-hold", found, paths.KERNEL_HOLD, severity=INFO, remedy="")


def kernel_findings(facts: Facts, decision: Decision) -> Iterator[Finding]:
    """Warnings about the decision's kernel and its pair with ROCm."""
    kernel = decision.kernel
    if kernel.action == "install" and kernel.verdict == kernels.UNPROVEN:
        found = f"kernel {kernel.release} from {kernel.source} is {kernel.verdict}"
        yield finding("kernel-unproven", found, "kernel_source")
    if kernel.action == "keep" and halves_memory(facts):
        yield finding("kernel-half-memory", f"kernel {facts.kernel} (ROCm#6143)", OSRELEASE)
    pair = decision.pair
    if pair is not None and (pair.verdict != rocm_pairs.OK or not pair.listed):
        yield finding("rocm-kernel-pair", pair.why, TABLE)
