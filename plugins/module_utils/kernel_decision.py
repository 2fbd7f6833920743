# SPDX-License-Identifier: Apache-2.0
"""Which kernel a box is to run: whether the running one stays, else the one of several to take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import amdgpu_module as kernel_module
from . import kernels, states
from .driver_choice import DKMS, INTREE, Wishes, choose_driver, choose_repository, driver_release
from .facts import Facts
from .kernel_choice import AptSource, Deb, KernelCandidate, Question, choose
from .kernel_choice import judge as judge_kernel
from .kernels import Forecast
from .refusal import Refused


class KernelChoice(NamedTuple):
    """``action`` keep or install; ``release`` is the kernel that is to run.

    ``source`` says where it comes from (empty: it stays); ``debs`` are the packages of a mainline build.
    ``target`` and ``apt_source``: apt's target release, and a source to add first, for backports.
    """

    action: str
    release: str
    packages: tuple[str, ...]
    running: str
    verdict: str
    source: str = ""
    debs: tuple[Deb, ...] = ()
    target: str = ""
    apt_source: AptSource | None = None

    def public(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **self._asdict(),
            "packages": list(self.packages),
            "debs": [deb._asdict() for deb in self.debs],
            "apt_source": self.apt_source._asdict() if self.apt_source else None,
        }


def kernel_question(facts: Facts, wishes: Wishes) -> Question:
    """What a kernel is wanted for on this box."""
    driver, _why = choose_driver(facts, wishes)
    under_dkms = driver.policy == DKMS
    return Question(
        distribution=facts.distribution,
        isas=tuple(gpu.gfx for gpu in facts.supported),
        source=wishes.kernel_source,
        version=wishes.kernel_version,
        under_dkms=under_dkms,
        dkms=driver_release(facts, choose_repository(facts, wishes, driver)) if under_dkms else None,
        signed=facts.secure_boot,
    )


def lacks_module(facts: Facts) -> bool:
    """Whether the running kernel has no amdgpu module at all: minimal installs leave it out."""
    return facts.on_disk.origin == kernel_module.NONE and facts.loaded.origin == kernel_module.NONE


def judge_running(facts: Facts, wishes: Wishes) -> Forecast:
    """The verdict on the running kernel: its own numbers where the wanted driver shows them."""
    driver, _why = choose_driver(facts, wishes)
    question = kernel_question(facts, wishes)
    kernel = kernels.parse(facts.kernel)
    if lacks_module(facts) and driver.policy == INTREE:
        return Forecast(kernels.BAD, "its amdgpu module is not on the disk (package linux-modules-extra)")
    table = judge_kernel(question, kernel) if kernel else kernels.forecast_all(None, question.isas)
    judged = states.must_export(facts)
    speaks = facts.loaded.origin == driver.origin and not facts.module_changed
    if not judged or not speaks or any(gpu.node is None for gpu in judged):
        return table
    odd = [gpu for gpu in judged if gpu.cwsr != "ok"]
    if not odd:
        return Forecast(kernels.FIXED, f"proven: {judged[0].cwsr_why}")
    return Forecast(kernels.BAD, f"seen: {odd[0].cwsr_why}")


def needs_kernel(facts: Facts, wishes: Wishes) -> bool:
    """Whether a kernel must be looked for: only then is the network touched."""
    if states.classify(facts) in (states.NO_GPU, states.UNKNOWN) or wishes.kernel_source == "keep":
        return False
    if wishes.kernel_version:
        kernel = kernels.parse(facts.kernel)
        return kernel is None or not kernels.is_pin_of(wishes.kernel_version, kernel)
    if judge_running(facts, wishes).verdict != kernels.FIXED:
        return True
    # It works, with half of the memory: reason enough where backports are asked for by name.
    return wishes.kernel_source == "backports" and halves_memory(facts)


def halves_memory(facts: Facts) -> bool:
    """Whether the running kernel lets the GPU of an APU see but half of the memory (ROCm#6143)."""
    apu = any(gpu.apu for gpu in facts.supported)
    return apu and kernels.halves_memory(kernels.parse(facts.kernel))


def choose_kernel(
    facts: Facts, wishes: Wishes, candidates: Sequence[KernelCandidate], problems: Sequence[str] = ()
) -> tuple[KernelChoice, str]:
    """The kernel to run and why; *problems* of the sources are told where nothing fixed is found.

    Raises Refused.
    """
    running = judge_running(facts, wishes)
    keep = KernelChoice("keep", facts.kernel, (), facts.kernel, running.verdict)
    if not needs_kernel(facts, wishes):
        return keep, f"kernel {facts.kernel} stays ({running.verdict}: {running.why})"
    # What is only unproven is not left for another unproven one.
    chosen = choose(
        candidates,
        "" if lacks_module(facts) else facts.kernel,
        accept_unproven=running.verdict == kernels.BAD or bool(wishes.kernel_version),
    )
    if chosen is not None:
        choice = KernelChoice(
            "install",
            chosen.release,
            chosen.packages,
            facts.kernel,
            chosen.forecast.verdict,
            chosen.source,
            chosen.debs,
            chosen.target,
            chosen.apt_source,
        )
        told = f"; nothing proven was to be had ({' '.join(problems[:3])})" if problems else ""
        if chosen.release == facts.kernel:
            return choice, f"what kernel {facts.kernel} lacks, from {chosen.source}: {running.why}"
        return choice, (
            f"kernel {chosen.release} from {chosen.source} ({chosen.forecast.verdict}: {chosen.forecast.why})"
            f" instead of {facts.kernel} ({running.verdict}: {running.why})"
            f"{told if chosen.forecast.verdict != kernels.FIXED else ''}"
        )
    if running.verdict != kernels.BAD and not wishes.kernel_version:
        told = f" ({' '.join(problems[:3])})" if problems else ""
        return keep, f"kernel {facts.kernel} stays: {running.why}, and nothing better is to be had{told}"
    raise _no_kernel(facts, wishes, running, candidates, problems)


def _no_kernel(
    facts: Facts,
    wishes: Wishes,
    running: Forecast,
    candidates: Sequence[KernelCandidate],
    problems: Sequence[str],
) -> Refused:
    if wishes.kernel_version:
        trouble = f"kernel_version asks for {wishes.kernel_version}, {facts.kernel} runs"
    else:
        trouble = f"Kernel {facts.kernel} does not work for this GPU ({running.why})"
    if not facts.distribution.apt:
        from . import own_commands

        command = own_commands.kernel(facts.distribution)
        return Refused(
            f"{trouble}, and {facts.distribution.name} has no apt that this kit could install one from.",
            f"Run: {command}",
        )
    seen = "; ".join(f"{c.release} ({c.forecast.verdict}: {c.forecast.why})" for c in candidates) or "none"
    wanted = "that one" if wishes.kernel_version else "a kernel with the CWSR fix"
    if facts.secure_boot:
        seen += " (Secure Boot is on: unsigned kernels in apt are left out)"
    told = f" Told: {' '.join(problems[:3])}" if problems else ""
    where = "" if wishes.kernel_source == "auto" else f" with kernel_source {wishes.kernel_source}"
    return Refused(
        f"{trouble}, and there is no way to {wanted}{where}; seen: {seen}.{told}",
        "Correct kernel_source or kernel_version, or add an apt source that carries such a kernel "
        "(docs/kernel.md).",
    )
