# SPDX-License-Identifier: Apache-2.0
"""From facts and wishes to the one decision that the later roles only execute. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import amdgpu_module as kernel_module
from . import apt_sources, dkms_kernels, driver_releases, kernels, memory, releases, states
from .facts import Facts
from .kernel_choice import KernelCandidate, Question, choose
from .kernel_choice import judge as judge_kernel
from .kernels import Forecast
from .refusal import Refused

INTREE = "intree"
DKMS = "dkms"

# Where the kit has no package backend: the distribution's own way to a newer kernel.
_OWN_COMMANDS = {
    "fedora": "sudo dnf upgrade --refresh kernel && sudo reboot",
    "rhel": "sudo dnf upgrade kernel && sudo reboot",
    "arch": "sudo pacman -Syu linux && sudo reboot",
    "opensuse-tumbleweed": "sudo zypper update kernel-default && sudo reboot",
    "sles": "sudo zypper update kernel-default && sudo reboot",
}


class Wishes(NamedTuple):
    """The variables that steer the decision, with their defaults."""

    policy: str = "auto"  # auto, intree, dkms
    repository_version: str = driver_releases.DEFAULT_VERSION
    repository_exact: bool = False
    kernel_source: str = "auto"  # auto, keep, hwe, oem, distro
    kernel_version: str = ""
    release: str = ""
    gtt_gib: str = "auto"


class Driver(NamedTuple):
    """Which amdgpu module is wanted, and the state the box was found in."""

    policy: str
    origin: str
    state: str


class Repository(NamedTuple):
    """AMD's driver repository: a minimum version, or the very one."""

    version: str
    exact: bool


class KernelChoice(NamedTuple):
    """``action`` keep or install; ``release`` is the kernel that is to run."""

    action: str
    release: str
    packages: tuple[str, ...]
    running: str
    verdict: str


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

    def public(self) -> dict[str, Any]:
        """The JSON that later roles, plan and doctor read."""
        return {
            "driver": self.driver._asdict(),
            "repository": self.repository._asdict() if self.repository else None,
            "kernel": {**self.kernel._asdict(), "packages": list(self.kernel.packages)},
            "release": self.release._asdict(),
            "gtt": {"pages": self.gtt_pages},
            "reasons": list(self.reasons),
        }


def choose_driver(facts: Facts, wishes: Wishes) -> tuple[Driver, str]:
    """The driver to run and why."""
    state = states.classify(facts)
    if wishes.policy == INTREE:
        why = "the kernel's own driver: amdgpu_driver_policy is intree"
        return Driver(INTREE, kernel_module.IN_TREE, state), why
    if wishes.policy == DKMS:
        return Driver(DKMS, kernel_module.DKMS, state), "AMD's DKMS driver: amdgpu_driver_policy is dkms"
    apus = [gpu for gpu in facts.gpus if gpu.gfx.startswith("gfx115")]
    if apus:
        why = f"the kernel's own driver: AMD advises it on {apus[0].gfx} (ROCm#5724, #6146)"
        return Driver(INTREE, kernel_module.IN_TREE, state), why
    if state == states.DKMS_GOOD:
        return Driver(DKMS, kernel_module.DKMS, state), "AMD's DKMS driver runs and works: it stays"
    return Driver(INTREE, kernel_module.IN_TREE, state), "the kernel's own driver: nothing here needs DKMS"


def choose_repository(facts: Facts, wishes: Wishes, driver: Driver) -> Repository | None:
    """The driver repository to install from; None where none is needed."""
    if driver.policy != DKMS:
        return None
    if wishes.policy == DKMS:
        return Repository(wishes.repository_version, wishes.repository_exact)
    # Kept because it works: whatever version it comes from is the minimum, so nothing moves.
    versions = [v for v in map(apt_sources.version, facts.apt.drivers) if v is not None]
    return Repository(min(versions, key=driver_releases.key), False) if versions else None


def driver_release(facts: Facts, repository: Repository | None) -> driver_releases.DriverRelease | None:
    """The DKMS that will be installed: a later repository that is set already stays."""
    if repository is None:
        return driver_releases.by_module(facts.loaded.version or "")
    versions = [v for v in map(apt_sources.version, facts.apt.drivers) if v is not None]
    later = [v for v in versions if driver_releases.satisfies(v, repository.version, repository.exact)]
    return driver_releases.release(min(later, key=driver_releases.key) if later else repository.version)


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
    """Whether apt must be asked for a kernel: only then is the network touched."""
    if states.classify(facts) in (states.NO_GPU, states.UNKNOWN) or wishes.kernel_source == "keep":
        return False
    if wishes.kernel_version:
        return wishes.kernel_version != facts.kernel
    return judge_running(facts, wishes).verdict != kernels.FIXED


def choose_kernel(
    facts: Facts, wishes: Wishes, candidates: Sequence[KernelCandidate], problems: Sequence[str] = ()
) -> tuple[KernelChoice, str]:
    """The kernel to run and why; *problems* are apt's, told where nothing is found. Raises Refused."""
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
        return (
            KernelChoice("install", chosen.release, chosen.packages, facts.kernel, chosen.forecast.verdict),
            f"kernel {chosen.release} from {chosen.source} ({chosen.forecast.verdict}: {chosen.forecast.why})"
            f" instead of {facts.kernel} ({running.verdict}: {running.why})",
        )
    if running.verdict == kernels.UNPROVEN and not wishes.kernel_version:
        return keep, f"kernel {facts.kernel} stays: {running.why}, and apt offers nothing better"
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
        command = _OWN_COMMANDS.get(facts.distribution.id, "install a kernel of 6.18.4 or later and reboot")
        return Refused(
            f"{trouble}, and {facts.distribution.name} has no apt that this kit could install one from.",
            f"Run: {command}",
        )
    seen = "; ".join(f"{c.release} ({c.forecast.verdict}: {c.forecast.why})" for c in candidates) or "none"
    wanted = "that one" if wishes.kernel_version else "a kernel with the CWSR fix"
    if facts.secure_boot:
        seen += " (Secure Boot is on: unsigned mainline kernels are left out)"
    apt_says = f" apt says: {' '.join(problems[:3])}" if problems else ""
    return Refused(
        f"{trouble}, and apt offers no way to {wanted}; seen: {seen}.{apt_says}",
        "Add an apt source that carries one (kernel_source and kernel_version choose among what apt has).",
    )


def decide(
    facts: Facts, wishes: Wishes, candidates: Sequence[KernelCandidate] = (), problems: Sequence[str] = ()
) -> Decision:
    """The decision. *candidates* are only looked at where :func:`needs_kernel`.

    Raises Refused: no supported GPU, an unknown state, no kernel to be had, a wish that cannot be met.
    """
    if not driver_releases.known_form(wishes.repository_version):
        raise Refused(
            f"amdgpu_driver_repo_version {wishes.repository_version!r} is no repository version.",
            f"Use numbers like {driver_releases.DEFAULT_VERSION}, or latest.",
        )
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
    if base in releases.KNOWN_BAD:
        why_bundle += f" (known trouble with {base}: {releases.KNOWN_BAD[base]})"
    repository = choose_repository(facts, wishes, driver)
    if repository is not None:
        refusal = dkms_kernels.foresee(facts, repository.version, repository.exact, kernel.release)
        if refusal is not None:
            raise refusal
    return Decision(driver, repository, kernel, bundle, pages, (why_driver, why_kernel, why_bundle))


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
