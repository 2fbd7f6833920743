# SPDX-License-Identifier: Apache-2.0
"""Look at a host, decide, and tell what was found: what the module preflight and doctor return."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import load_blockers, paths, releases, states
from .decision import Bundle, Decision, Wishes, decide, kernel_question, needs_kernel, no_gpu
from .facts import Facts
from .findings import REGISTRY, Finding, finding, printable
from .findings_gpu import gpu_findings
from .findings_host import host_findings
from .findings_kernel import hold_findings, kernel_findings
from .host import Host
from .kernel_choice import KernelCandidate
from .refusal import Refused

# What is asked only where a kernel is needed: candidates, and what apt complained about.
Ask = Callable[[Facts, Wishes], "tuple[list[KernelCandidate], list[str]]"]
Foresee = Callable[[Decision], None]  # raises Refused


class Report(NamedTuple):
    """``decision`` is None where none was possible; ``refusal`` then says why."""

    facts: Facts
    decision: Decision | None
    findings: tuple[Finding, ...]
    refusal: Refused | None

    def public(self) -> dict[str, Any]:
        """The value of ``ansible_facts.lemonade_deploy``."""
        return {
            "facts": _clean(self.facts.public()),
            "decision": self.decision.public() if self.decision else None,
            "findings": [found.public() for found in self.findings],
        }


def _clean(value: Any) -> Any:
    """*value* with every text printable (file names and URIs may hold bytes that are no UTF-8)."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, (list, tuple)) else value


def ask_apt(host: Host) -> Ask:
    """Ask the host's own apt, on a private state with AMD's repositories left out."""

    def ask(facts: Facts, wishes: Wishes) -> tuple[list[KernelCandidate], list[str]]:
        if not facts.distribution.apt:
            return [], []
        # Imported where it is needed: a converged host asks nobody, and imports are what costs it time.
        from . import kernel_search

        question = kernel_question(facts, wishes)
        return kernel_search.search(host, question, wishes.mainline, secure_boot=facts.secure_boot)

    return ask


def _decide(facts: Facts, wishes: Wishes, ask: Ask) -> Decision:
    candidates, problems = ask(facts, wishes) if needs_kernel(facts, wishes) else ([], [])
    return decide(facts, wishes, candidates, problems)


def _refusal_finding(facts: Facts, refusal: Refused) -> list[Finding]:
    """The refusal as a finding; the missing GPU and an unknown state have their own."""
    if not facts.supported or refusal.kind == states.UNKNOWN:
        return []
    return [finding(refusal.kind, refusal.found, "decision", remedy=refusal.remedy or None)]


def _no_vain_advice(found: Sequence[Finding], refusal: Refused) -> list[Finding]:
    """*found* where a run is refused for the kernel's sake: the finding about it says the same."""
    from . import boot_loader, dkms_kernels  # only where a run is refused: imports cost time

    return [
        item._replace(remedy=refusal.remedy)
        if item.id == "kernel-without-fix" and refusal.kind in (dkms_kernels.KIND, boot_loader.KIND)
        else item
        for item in found
    ]


def _unless_signed(host: Host, found: list[Finding]) -> list[Finding]:
    """*found* without what is said of unsigned kernels where the owner's own key signs them."""
    unsigned = [item for item in found if item.id == "secure-boot-unsigned-kernel"]
    if not unsigned:
        return found
    from . import kernel_signing  # only where Secure Boot is on and a mainline kernel in question

    return found if kernel_signing.lacks(host) else [item for item in found if item not in unsigned]


def foresee_kernel(host: Host, menu: bool) -> Foresee:
    """Ask what would stop the kernel layer; *menu*: also whether GRUB's menu can be made (costs seconds)."""

    def foresee(decision: Decision) -> None:
        from . import kernel_foresight  # only where a kernel is to come: imports cost time

        kernel_foresight.demand(host, decision, menu=menu)

    return foresee


def look(
    host: Host,
    facts: Facts,
    wishes: Wishes,
    ask: Ask,
    min_gib: int,
    unqualified: Sequence[str] = (),
    foresee: Foresee | None = None,
) -> Report:
    """Decide and collect the findings. *min_gib*: free space wanted for a bundle that is not yet there.

    *unqualified*: release tags of which the lock says so. *foresee* refuses a kernel that the host
    could not take, before any layer changes it (None: only its boot loader is looked at).
    """
    decision: Decision | None = None
    refusal: Refused | None = None
    try:
        decision = _decide(facts, wishes, ask)
        if decision.kernel.action == "install":
            if foresee is not None:
                foresee(decision)
            else:
                from . import boot_loader

                boot_loader.demand(host)
    except Refused as refused:
        refusal = refused
    tag = decision.release.tag if decision else ""
    there = bool(tag) and host.is_dir(f"{paths.BUNDLE_ROOT}/{tag}")
    found = [
        *gpu_findings(facts, wishes, no_gpu(facts)),
        *host_findings(facts, wishes, min_gib=min_gib, bundle_there=there),
    ]
    found = _unless_signed(host, found)
    if refusal is not None and not any(REGISTRY[item.id].stops for item in found):
        found = [*_no_vain_advice(found, refusal), *_refusal_finding(facts, refusal)]
    found += hold_findings(host, time.time())
    if decision is not None:
        found += kernel_findings(facts, decision)
        found += _unfit(decision.release, unqualified)
    return Report(facts, decision, tuple(found), refusal)


def _unfit(release: Bundle, unqualified: Sequence[str]) -> list[Finding]:
    """The warning about a release that is known to fail, or that upstream's tests call unqualified."""
    why = releases.unfit(release.base, release.tag in unqualified)
    if not why:
        return []
    if release.base in releases.KNOWN_BAD:
        return [finding("bundle-known-bad", f"{release.base}: {why}", "vllm_rocm_release")]
    return [finding("bundle-unqualified", f"{release.tag}: {why}", "lemonade-deploy.lock")]


def stop_reason(report: Report) -> Refused | None:
    """Why a run must not go on with this host, or None."""
    if report.refusal is not None:
        return report.refusal
    if (blocked := load_blockers.blocked(report.facts)) is not None:
        return blocked
    for found in report.findings:
        if found.id == "disk-space" and found.severity == "error":
            return Refused(f"Not enough space: {found.found}.", found.remedy)
        if found.id in _UNCLEAR_SOURCES and _installs_dkms(report):
            return Refused(f"{found.found}. Nothing was changed.", found.remedy)
    return None


# AMD's sources from which no driver is installed (module driver_sources).
_UNCLEAR_SOURCES = ("amdgpu-repo-suite", "amdgpu-repo-duplicate")


def _installs_dkms(report: Report) -> bool:
    """Whether AMD's driver is wanted and is not the one that works already."""
    driver = report.decision.driver if report.decision else None
    return driver is not None and driver.origin == "dkms" and driver.state != states.DKMS_GOOD


def ids(findings: Sequence[Finding]) -> list[str]:
    """The ids of *findings*, in order."""
    return [found.id for found in findings]
