# SPDX-License-Identifier: Apache-2.0
"""From facts and wishes to the one decision that the later roles only execute. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import driver_releases, memory, releases, rocm_pairs, states
from .driver_choice import (
    INTREE,
    Driver,
    Repository,
    Wishes,
    choose_driver,
    choose_repository,
    demand_backend,
)
from .facts import Facts
from .gpus import Gpu
from .kernel_choice import KernelCandidate
from .kernel_decision import KernelChoice, choose_kernel, judge_running, kernel_question, needs_kernel
from .refusal import Refused

__all__ = [
    "Bundle",
    "Decision",
    "Driver",
    "KernelChoice",
    "Repository",
    "Wishes",
    "choose_driver",
    "decide",
    "judge_running",
    "kernel_question",
    "needs_kernel",
    "no_gpu",
]


class Bundle(NamedTuple):
    """The vLLM bundle: release base, family, and the tag of the two."""

    base: str
    family: str
    tag: str


class Decision(NamedTuple):
    """What is to be done with a box, and why. ``gtt_pages`` are 4 KiB pages, None: leave alone."""

    driver: Driver
    repository: Repository | None
    kernel: KernelChoice
    release: Bundle
    gtt_pages: int | None
    reasons: tuple[str, ...] = ()
    pair: rocm_pairs.Pair | None = None  # AMD's word on kernel and ROCm; None where it has none

    def public(self) -> dict[str, Any]:
        """The JSON that later roles, plan and doctor read."""
        return {
            "driver": self.driver._asdict(),
            "repository": self.repository._asdict() if self.repository else None,
            "kernel": self.kernel.public(),
            "release": self.release._asdict(),
            "gtt": {"pages": self.gtt_pages},
            "reasons": list(self.reasons),
        }


def decide(
    facts: Facts, wishes: Wishes, candidates: Sequence[KernelCandidate] = (), problems: Sequence[str] = ()
) -> Decision:
    """The decision. *candidates* are only looked at where :func:`needs_kernel`.

    Raises Refused: no supported GPU, an unknown state, no kernel to be had, a wish that cannot be met.
    """
    driver_releases.demand_form(wishes.repository_version)
    serving = facts.supported[0] if facts.supported else None
    if serving is None or serving.family is None:
        raise no_gpu(facts)
    driver, why_driver = choose_driver(facts, wishes)
    if driver.state == states.UNKNOWN:
        raise Refused(
            f"The GPU driver is in a state that this kit does not know: {states.explain_unknown(facts)}.",
            f"Nothing was changed. {states.remedy_unknown(facts)}",
            states.UNKNOWN,
        )
    demand_backend(facts, driver)
    kernel, why_kernel = choose_kernel(facts, wishes, candidates, problems)
    try:
        base = releases.base_for(wishes.release, serving.family)
        pages = memory.wanted_pages(
            wishes.gtt_gib, apu=serving.apu, total_kib=facts.memory_kib, configured=facts.gtt_pages
        )
    except ValueError as error:
        raise Refused(f"{error}.", "Correct the variable and run again.") from error
    bundle = Bundle(base, serving.family, releases.tag(base, serving.family))
    why_bundle = f"bundle of {serving.family} for {serving.name or serving.gfx} at {serving.pci}"
    if serving.support == "published":
        why_bundle += " (published, never exercised: no qualification runs on this GPU)"
    if base in releases.KNOWN_BAD:
        why_bundle += f" (known trouble with {base}: {releases.KNOWN_BAD[base]})"
    repository = choose_repository(facts, wishes, driver)
    if repository is not None:
        from . import dkms_kernels  # imports are what a host with nothing to do pays for

        refusal = dkms_kernels.foresee(facts, repository.version, repository.exact, kernel.release)
        if refusal is not None:
            raise refusal
    pair = _judge_pair(serving, driver, kernel, base)
    whys = (why_driver, why_kernel, why_bundle, *([pair.why] if pair else []))
    return Decision(driver, repository, kernel, bundle, pages, whys, pair)


def _judge_pair(gpu: Gpu, driver: Driver, kernel: KernelChoice, base: str) -> rocm_pairs.Pair | None:
    """AMD's word on the kernel and the ROCm that are to run. Raises Refused where it is no."""
    if gpu.gfx != rocm_pairs.GFX or driver.policy != INTREE:
        return None
    pair = rocm_pairs.judge(releases.rocm(base), kernel.release)
    if pair.verdict != rocm_pairs.NO:
        return pair
    raise Refused(
        f"Kernel {kernel.release} and the release {base} do not go together on {gpu.gfx}: {pair.why}.",
        "Take a vllm_rocm_release with ROCm 7.11 or later (empty: the kit's own), or another kernel_version.",
        rocm_pairs.KIND,
    )


def no_gpu(facts: Facts) -> Refused:
    """Why a box without a supported GPU is not gone on with."""
    if not facts.gpus:
        return Refused(
            "No AMD GPU is on the PCI bus.",
            "Run this on a box with one of: " + _families() + ", or leave the host out.",
        )
    names = ", ".join(
        f"{gpu.name or 'device ' + gpu.device_id} ({gpu.gfx}) at {gpu.pci}" for gpu in facts.gpus
    )
    return Refused(f"No vLLM bundle is published for this GPU: {names}.", f"Supported are {_families()}.")


def _families() -> str:
    return "gfx1150, gfx1151, gfx110X (RX 7000, Phoenix), gfx120X (RX 9000)"
