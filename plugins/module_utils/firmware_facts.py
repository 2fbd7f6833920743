# SPDX-License-Identifier: Apache-2.0
"""Which MES firmware a GPU runs, and which files would be loaded instead of the distribution's.

MES 0x83 hangs gfx1151 whatever the kernel is (linux-firmware 20251125, amdgpu-dkms-firmware of 30.30;
ROCm#5724, #5991).
"""

from __future__ import annotations

import re

from . import pci
from .host import Host

SHADOW = "/lib/firmware/updates/amdgpu"  # AMD's packages put theirs here; it outranks /lib/firmware/amdgpu
DEBUGFS = "/sys/kernel/debug/dri"
# "MES feature version: 1, fw version: 0x00000083" (amdgpu_debugfs_firmware_info); MES_KIQ is another one.
_MES = re.compile(r"^MES feature version: \d+, fw version: (0x[0-9a-fA-F]+)", re.MULTILINE)


def mes_version(host: Host, address: str, device: str | None) -> tuple[int | None, str]:
    """(version, the file that told it) of the MES firmware that runs; (None, "") where nothing tells.

    *device* is the GPU's folder in sysfs: ``fw_version/mes_fw_version`` there needs neither root nor
    debugfs, which is asked second.
    """
    if device is not None:
        path = f"{device}/fw_version/mes_fw_version"
        version = pci.number(host.value(path))
        if version is not None:
            return version, path
    for name in host.listdir(DEBUGFS):
        folder = f"{DEBUGFS}/{name}"
        # Newer kernels name the folder by the bus address, older ones by a number.
        if name != address and address not in (host.read(f"{folder}/name") or ""):
            continue
        found = _MES.search(host.read(f"{folder}/amdgpu_firmware_info") or "")
        if found is not None:
            return int(found[1], 16), f"{folder}/amdgpu_firmware_info"
    return None, ""


def shadowing(host: Host) -> tuple[str, ...]:
    """Names of the files that outrank the distribution's firmware of the same name (or add to it)."""
    return tuple(name for name in host.listdir(SHADOW) if name.partition(".")[2].startswith("bin"))
