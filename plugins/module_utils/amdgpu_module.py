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

_TREE = "/var/lib/dkms"
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
    """The module that modprobe would load for a kernel. ``origin``: in-tree, dkms, foreign or none.

    ``owner``: another DKMS module than AMD's that built it, which makes it foreign.
    """

    origin: str
    path: str | None = None
    owner: str = ""


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
            owner = _other_owner(host, kernel) if origin == DKMS else ""
            return OnDisk(FOREIGN if owner else origin, found[0], owner)
    return OnDisk(NONE)


def _other_owner(host: Host, kernel: str) -> str:
    """``name/version`` in DKMS's tree of another module that has an amdgpu for *kernel*; "" for AMD's own."""
    trees = [name for name in host.listdir(_TREE) if name != "amdgpu"]
    for name in trees:
        found = host.glob(f"{_TREE}/{name}/*/{kernel}/*/module/amdgpu.ko*")
        if found:
            return "/".join(found[0][len(_TREE) + 1 :].split("/")[:2])
    return ""


def srcversion(host: Host, kernel: str) -> str | None:
    """srcversion of the module on disk that wins for *kernel*, or None where modinfo finds none."""
    done = host.run(("modinfo", "-k", kernel, "-F", "srcversion", "amdgpu"), check=False, timeout=60)
    text = done.stdout.strip()
    return text if done.rc == 0 and text else None
