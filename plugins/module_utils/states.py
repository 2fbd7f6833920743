# SPDX-License-Identifier: Apache-2.0
"""The states a box's GPU driver can be in, by what is seen and nothing else."""

from __future__ import annotations

from . import amdgpu_module as kernel_module
from . import cwsr, kernels
from .facts import Facts
from .gpus import Gpu

NO_GPU = "none"
UNKNOWN = "unknown"
DARK = "dark"
DPKG = "dpkg-half-configured"
BROKEN_BUILD = "dkms-broken-build"
STALE_TREE = "dkms-stale-tree"
DKMS_GOOD = "dkms-good"
DKMS_MASKING = "dkms-masking"
DKMS_INACTIVE = "dkms-inactive"
IN_TREE_GOOD = "in-tree-good"
IN_TREE_OLD = "in-tree-old"


def must_export(facts: Facts) -> list[Gpu]:
    """Supported GPUs on which nothing works without the exported CWSR sizes."""
    return [gpu for gpu in facts.supported if gpu.gfx in cwsr.NEEDS_EXPORT]


def works(facts: Facts) -> bool:
    """Whether every supported GPU has a driver, and the right numbers where it needs them."""
    judged = must_export(facts)
    return all(gpu.node is not None for gpu in facts.supported) and all(gpu.cwsr == "ok" for gpu in judged)


def given_away(facts: Facts) -> list[Gpu]:
    """Supported GPUs that another driver than amdgpu holds; only where no other is left to serve."""
    return [gpu for gpu in facts.supported if gpu.given_away]


def failed_build(facts: Facts) -> bool:
    """Whether DKMS failed to build amdgpu and nothing built it since."""
    return any(version.failed_log is not None for version in facts.dkms)


def stale_tree(facts: Facts) -> bool:
    """Whether DKMS keeps a tree that its own commands cannot handle, or that no package owns."""
    orphaned = bool(facts.dkms) and not facts.dkms_installed
    return orphaned or any(version.broken for version in facts.dkms)


def _in_tree(facts: Facts) -> str:
    if facts.dkms_installed or facts.dkms:
        return DKMS_INACTIVE
    if works(facts):
        return IN_TREE_GOOD
    # A module that waits for a boot says nothing about the one on disk.
    forecast = kernels.forecast_all(kernels.parse(facts.kernel), [gpu.gfx for gpu in facts.supported])
    if forecast.verdict == kernels.FIXED and not facts.module_changed:
        return UNKNOWN  # the kernel should carry the fix, and its numbers say otherwise
    return IN_TREE_OLD


def classify(facts: Facts) -> str:
    """The state of the box: the first of these that fits, the gravest first."""
    if not facts.supported:
        return NO_GPU
    if facts.on_disk.origin == kernel_module.FOREIGN or given_away(facts):
        return UNKNOWN
    if any(gpu.node is None for gpu in facts.supported):
        return DARK
    if facts.loaded.origin == kernel_module.NONE:
        return UNKNOWN  # KFD shows the GPU, but there is no module: built into the kernel, or a fake
    if facts.dpkg.unfinished or facts.dpkg.interrupted:
        return DPKG
    if failed_build(facts):
        return BROKEN_BUILD
    if stale_tree(facts):
        return STALE_TREE
    if facts.loaded.origin == kernel_module.DKMS:
        return DKMS_GOOD if works(facts) else DKMS_MASKING
    return _in_tree(facts)


def contradicts(facts: Facts) -> bool:
    """Whether the state is unknown for its numbers alone: the kernel should have the fix."""
    odd = facts.on_disk.origin == kernel_module.FOREIGN or facts.loaded.origin == kernel_module.NONE
    return not odd and not given_away(facts) and classify(facts) == UNKNOWN


def remedy_unknown(facts: Facts) -> str:
    """What puts an unknown state in order; no run does."""
    if given_away(facts):
        gpu = given_away(facts)[0]
        return (
            f"Give it back to amdgpu (vfio-pci.ids= on the command line, ids= in modprobe.d, driver_override "
            f"of {gpu.pci}) and reboot, or leave this host out."
        )
    if not contradicts(facts):
        return "Put the driver in order by hand (remove modules that no package owns), then run again."
    modules = f"linux-modules-{facts.kernel}"
    return (
        f"Reboot. If the numbers stay, reinstall the modules of kernel {facts.kernel} (package {modules}), "
        "or boot another one of 6.18.4 or later, then run again; please report them."
    )


def explain_unknown(facts: Facts) -> str:
    """What was seen that fits no state."""
    if facts.on_disk.owner:
        return f"{facts.on_disk.path} was built by DKMS for {facts.on_disk.owner}, not by AMD's package"
    if given_away(facts):
        return "; ".join(
            f"{gpu.name or gpu.gfx} at {gpu.pci} is bound to {gpu.bound}" for gpu in facts.supported
        )
    if facts.on_disk.origin == kernel_module.FOREIGN:
        return f"{facts.on_disk.path} is neither the kernel's nor DKMS's amdgpu module"
    if facts.loaded.origin == kernel_module.NONE:
        return "KFD shows the GPU, but /sys/module/amdgpu is not there"
    odd = [f"{gpu.pci}: {gpu.cwsr_why}" for gpu in must_export(facts) if gpu.cwsr != "ok"]
    return f"kernel {facts.kernel} should carry the CWSR fix, but {'; '.join(odd)}"
