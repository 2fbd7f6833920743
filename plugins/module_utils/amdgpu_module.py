# SPDX-License-Identifier: Apache-2.0
"""The amdgpu kernel module: which one is loaded, which one would load, whether a boot is due."""

from __future__ import annotations

from typing import NamedTuple

from .host import Host

SYS = "/sys/module/amdgpu"
IN_TREE = "in-tree"
DKMS = "dkms"
NONE = "none"
FOREIGN = "foreign"  # a module by hand or of another packager

# depmod's order on Debian and Ubuntu: updates/ outranks the kernel's own folder.
_PLACES = (
    ("updates/dkms", DKMS),
    ("updates", FOREIGN),
    ("extra", FOREIGN),
    ("kernel/drivers/gpu/drm/amd/amdgpu", IN_TREE),
)


class Loaded(NamedTuple):
    """The module in the running kernel. ``origin``: in-tree, dkms or none (not loaded).

    ``version`` is there only with DKMS's: the in-tree module has none.
    """

    origin: str
    version: str | None = None
    srcversion: str | None = None


class OnDisk(NamedTuple):
    """The module that modprobe would load for a kernel. ``origin``: in-tree, dkms, foreign or none."""

    origin: str
    path: str | None = None


def read_loaded(host: Host) -> Loaded:
    """The loaded module, by what it says in sysfs."""
    if not host.is_dir(SYS):
        return Loaded(NONE)
    version = host.value(f"{SYS}/version")
    return Loaded(DKMS if version else IN_TREE, version or None, host.value(f"{SYS}/srcversion"))


def on_disk(host: Host, kernel: str) -> OnDisk:
    """The module that wins for *kernel* by its place below /lib/modules."""
    for place, origin in _PLACES:
        found = host.glob(f"/lib/modules/{kernel}/{place}/amdgpu.ko*")
        if found:
            return OnDisk(origin, found[0])
    return OnDisk(NONE)


def srcversion(host: Host, kernel: str) -> str | None:
    """srcversion of the module on disk that wins for *kernel*, or None where modinfo finds none."""
    done = host.run(("modinfo", "-k", kernel, "-F", "srcversion", "amdgpu"), check=False, timeout=60)
    text = done.stdout.strip()
    return text if done.rc == 0 and text else None
