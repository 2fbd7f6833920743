# SPDX-License-Identifier: Apache-2.0
"""Findings about the GPU, the loaded driver and the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from . import amdgpu_module as kernel_module
from . import cwsr, firmware_facts, kernels, kfd, load_blockers, paths, pci, secure_boot, states
from .decision import Wishes, judge_running
from .facts import Facts
from .findings import ERROR, INFO, WARNING, Finding, finding
from .gpus import Gpu
from .host import OSRELEASE
from .refusal import Refused

BAD_MES = 0x83
_MES_VERSION = 0xFFF  # AMDGPU_MES_VERSION_MASK
_CWSR = {"missing": "cwsr-missing", "old-vgpr": "cwsr-old-vgpr", "wrong": "cwsr-wrong"}


def _node(gpu: Gpu) -> str:
    return f"{kfd.NODES}/{gpu.node}/properties"


def _name(gpu: Gpu) -> str:
    return f"{gpu.name or 'GPU ' + gpu.device_id} ({gpu.gfx}) at {gpu.pci}"


def _why_dark(facts: Facts, gpu: Gpu) -> str:
    """The likely reasons why no driver runs a GPU that is there."""
    reasons = load_blockers.why_dark(facts)
    if gpu.bound not in (None, "amdgpu"):
        reasons.append(f"it is bound to {gpu.bound}")
    if facts.on_disk.origin == kernel_module.NONE:
        reasons.append(f"kernel {facts.kernel} has no amdgpu module on the disk")
    if facts.loaded.origin != kernel_module.NONE:
        reasons.append(f"the loaded {facts.loaded.origin} module does not drive it")
    return "; ".join(reasons) or f"kernel {facts.kernel} may be too old for it"


def _gpu_there(facts: Facts, no_gpu: Refused) -> Iterator[Finding]:
    if not facts.supported:
        yield finding("no-supported-gpu", no_gpu.found, pci.DEVICES_DIR)
    blocked = load_blockers.blocked(facts)
    for gpu in facts.supported:
        if gpu.node is None:
            yield finding(
                "gpu-without-driver",
                f"{_name(gpu)} has no node in KFD: {_why_dark(facts, gpu)}",
                f"{pci.DEVICES_DIR}/{gpu.pci}",
                remedy=blocked.remedy if blocked else None,
            )
    for gpu in facts.gpus:
        if not gpu.listed:
            yield finding(
                "gpu-unlisted", f"device id {gpu.device_id} at {gpu.pci}", f"{pci.DEVICES_DIR}/{gpu.pci}"
            )
        if gpu.node is not None and gpu.listed and gpu.kfd_gfx != gpu.gfx:
            yield finding(
                "gpu-mismatch", f"{_name(gpu)} is {gpu.kfd_gfx or 'no known GPU'} to KFD", _node(gpu)
            )
    for node in facts.stray_nodes:
        found = f"KFD node {node.number} ({node.gfx or node.gfx_target_version}) belongs to no PCI device"
        yield finding("gpu-mismatch", found, node.path)
    families = {gpu.family for gpu in facts.supported}
    if len(families) > 1:
        served, *others = facts.supported
        found = f"{_name(served)} is served, not {', '.join(_name(gpu) for gpu in others)}"
        yield finding("gpu-families-mixed", found, pci.DEVICES_DIR)


def _numbers(facts: Facts) -> Iterator[Finding]:
    # What a run would refuse is no remedy.
    by_hand = states.remedy_unknown(facts) if states.contradicts(facts) else None
    for gpu in facts.supported:
        if gpu.node is None:
            continue
        if gpu.cwsr in _CWSR:
            # Only gfx1151's user space depends on them; elsewhere they tell the kernel's age.
            severity = ERROR if gpu.gfx in cwsr.NEEDS_EXPORT else INFO
            yield finding(
                _CWSR[gpu.cwsr],
                f"{_name(gpu)}: {gpu.cwsr_why}",
                _node(gpu),
                severity=severity,
                remedy=by_hand if severity == ERROR else None,
            )
        elif gpu.cwsr_above:
            yield finding("cwsr-above-formula", f"{_name(gpu)}: {gpu.cwsr_why}", _node(gpu))
        if gpu.gfx == "gfx1151" and gpu.mes_firmware is not None:
            yield from _mes(facts, gpu, gpu.mes_firmware & _MES_VERSION)


def _mes(facts: Facts, gpu: Gpu, version: int) -> Iterator[Finding]:
    if version != BAD_MES:
        return
    shadow = [name for name in facts.firmware_shadow if "_mes" in name]
    package = facts.dpkg.version("amdgpu-dkms-firmware")
    where = f"; {firmware_facts.SHADOW}/{shadow[0]} outranks the distribution's" if shadow else ""
    owner = f" (amdgpu-dkms-firmware {package})" if shadow and package else ""
    found = f"{_name(gpu)} runs MES firmware {version:#x}{where}{owner}"
    yield finding("firmware-mes", found, gpu.mes_source)


def _driver(facts: Facts) -> Iterator[Finding]:
    state = states.classify(facts)
    # Numbers that a kernel with the fix should not show have findings of their own.
    if state == states.UNKNOWN and not states.contradicts(facts):
        yield finding("driver-unknown", states.explain_unknown(facts), kernel_module.SYS)
    masking = facts.loaded.origin == kernel_module.DKMS and not states.works(facts)
    if facts.supported and masking:
        yield finding(
            "dkms-masks-driver",
            f"the loaded amdgpu is DKMS's {facts.loaded.version}, not the kernel's own",
            f"{kernel_module.SYS}/version",
        )
    inactive = facts.loaded.origin == kernel_module.IN_TREE and facts.dkms_installed
    if facts.supported and inactive:
        version = facts.dpkg.version("amdgpu-dkms") or facts.dpkg.version("rock-dkms")
        found = f"amdgpu-dkms {version} is installed, the kernel's own module is loaded"
        yield finding("dkms-inactive", found, "/var/lib/dpkg/status")


def _kernel(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    if not facts.supported:
        return
    running = judge_running(facts, wishes)
    if running.verdict != kernels.FIXED:
        severity = ERROR if running.verdict == kernels.BAD else WARNING
        yield finding(
            "kernel-without-fix",
            f"kernel {facts.kernel}: {running.why}",
            OSRELEASE,
            severity=severity,
            remedy=states.remedy_unknown(facts) if states.classify(facts) == states.UNKNOWN else None,
        )
    if facts.module_changed:
        yield finding(
            "reboot-pending",
            f"the loaded amdgpu (srcversion {facts.loaded.srcversion}) is not the one on the disk "
            f"({facts.disk_srcversion})",
            f"{kernel_module.SYS}/srcversion",
        )
    if facts.due:
        yield finding("reboot-pending", "; ".join(facts.due), paths.ACTIVATION_DUE)
    kernel = kernels.parse(facts.kernel)
    if facts.secure_boot and kernel is not None and kernel.flavour == "mainline":
        yield finding("secure-boot-unsigned-kernel", f"kernel {facts.kernel} is a mainline build", OSRELEASE)
    pinned = kernels.parse(wishes.kernel_version)
    if facts.secure_boot and pinned is not None and pinned.flavour == "mainline" and pinned != kernel:
        found = f"kernel_version {wishes.kernel_version} is a mainline build"
        yield finding("secure-boot-unsigned-kernel", found, secure_boot.EFIVAR)


def gpu_findings(facts: Facts, wishes: Wishes, no_gpu: Refused) -> list[Finding]:
    """Findings about GPU, driver and kernel; *no_gpu* is the decision's own refusal text."""
    return [
        *_gpu_there(facts, no_gpu),
        *_numbers(facts),
        *_driver(facts),
        *_kernel(facts, wishes),
    ]
