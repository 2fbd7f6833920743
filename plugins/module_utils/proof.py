# SPDX-License-Identifier: Apache-2.0
"""The proof that what was wanted at boot is in effect: by what the running kernel shows, nothing else.

No variable skips it. Lines that are there prove nothing; the numbers must be those of the formula.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import activation, amdgpu_module, cwsr, memory
from .gpus import Gpu, read_gpus, supported
from .host import Host

# The fields of a GPU in the JSON of runs.
PUBLIC = (
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
# ssh may answer before amdgpu has set up its hardware.
SETTLE_SECONDS = 90


@dataclass(frozen=True)
class ProofWish:
    """``origin`` in-tree or dkms; ``kernel`` a release; ``pages`` None leaves the limit unproven."""

    origin: str
    kernel: str
    pages: int | None


@dataclass(frozen=True)
class Problem:
    """Why the proof fails, and what to do. ``kernel``: it speaks against the kernel or its driver."""

    found: str
    remedy: str
    kernel: bool = True


def read(host: Host) -> list[Gpu]:
    """The GPUs as the running kernel shows them."""
    return read_gpus(host, amdgpu_module.read_loaded(host).origin)


def public(gpus: Sequence[Gpu]) -> list[dict[str, Any]]:
    """GPUs in the shape of the runs' JSON."""
    return [{name: gpu.public()[name] for name in PUBLIC} for gpu in gpus]


def problems(host: Host, wish: ProofWish) -> list[Problem]:
    """What is not as wanted; empty means proven."""
    found = []
    running = host.running_kernel()
    if running != wish.kernel:
        found.append(
            Problem(
                f"kernel {running} runs, {wish.kernel} is wanted",
                "the box fell back to its old kernel: see `journalctl -k -b -1` and /var/lib/systemd/pstore"
                if activation.load(host).kernel == wish.kernel
                else "GRUB booted another kernel: see `grub-editenv list` and what sets its default",
            )
        )
    found += _driver(host, wish, running)
    found += _limit(host, wish)
    return found


def _driver(host: Host, wish: ProofWish, running: str) -> list[Problem]:
    loaded = amdgpu_module.read_loaded(host)
    if loaded.origin == amdgpu_module.NONE:
        return [
            Problem(
                f"the module amdgpu is not loaded in kernel {running}",
                "see `journalctl -k -b`, and blacklists in /etc/modprobe.d and on the command line",
            )
        ]
    found = []
    if loaded.origin != wish.origin:
        found.append(
            Problem(
                f"the loaded amdgpu is {loaded.origin}, {wish.origin} is wanted",
                f"see `modinfo -F filename amdgpu` and `lsinitramfs /boot/initrd.img-{running}`",
            )
        )
    for gpu in supported(read(host)):
        if gpu.node is None:
            found.append(
                Problem(
                    f"the {gpu.name or gpu.gfx} at {gpu.pci} has no KFD node",
                    "the driver is loaded but did not take this GPU: see `journalctl -k -b`",
                )
            )
        elif gpu.gfx in cwsr.NEEDS_EXPORT and gpu.cwsr != "ok":
            found.append(
                Problem(
                    f"{gpu.gfx} at {gpu.pci}, kernel {running}: {gpu.cwsr_why} ({gpu.cwsr})",
                    "kernel or driver lack the CWSR fix: choose another with kernel_source or kernel_version",
                )
            )
    return found


def _limit(host: Host, wish: ProofWish) -> list[Problem]:
    if wish.pages is None:
        return []
    module = memory.ttm_module(wish.origin)
    active = memory.active_pages(host, module)
    if active == wish.pages:
        return []
    rivals = memory.rivals(host, module, wish.pages)
    told = "; ".join(f"{rival.where} sets {rival.setting}" for rival in rivals)
    shown = "is not there" if active is None else f"is {active}"
    return [
        Problem(
            f"the limit {module}.pages_limit {shown}, {wish.pages} is wanted"
            + (f" ({told})" if told else ""),
            "take other settings of the limit away, or set gpu_memory_gtt_gib to the value you want",
            kernel=False,
        )
    ]


def settle(host: Host, wish: ProofWish, timeout: float = SETTLE_SECONDS) -> list[Problem]:
    """:func:`problems`, asked again for up to *timeout* seconds while the driver still sets up.

    A wrong kernel does not become the right one, nor a limit that the module was loaded with: then
    there is no waiting.
    """
    deadline = time.monotonic() + timeout
    while True:
        found = problems(host, wish)
        may_change = any(problem.kernel for problem in found) and host.running_kernel() == wish.kernel
        if not may_change or time.monotonic() >= deadline:
            return found
        time.sleep(1)  # sysfs sends no event for a KFD node
