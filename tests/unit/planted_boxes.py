# SPDX-License-Identifier: Apache-2.0
"""Boxes that take more than a line to plant something on, for the rows of planted.PLANTED."""

from __future__ import annotations

import json
from pathlib import Path

from trees import AMD_LINE, GOOD_KERNEL, GOOD_SIZES, Tree, bare, strix_halo


def two_sources(root: Path) -> Tree:
    """AMD's repository, named in two files."""
    tree = strix_halo(root).amd_source("31.20")
    return tree.file("/etc/apt/sources.list.d/rocm.list", "# x\n" + AMD_LINE.format("31.40.1"))


def unsigned(root: Path) -> Tree:
    """A DKMS module without a signature under Secure Boot."""
    tree = strix_halo(root, "6.18.20-061820-generic", GOOD_SIZES, "dkms").dkms_packages().secure_boot()
    return tree.dkms(built=["6.18.20-061820-generic"])


def mes(root: Path, version: str = "0x00000083") -> Tree:
    """MES firmware of this version, told by sysfs."""
    device = "/sys/class/drm/card0/device"
    tree = strix_halo(root).file(f"{device}/uevent", "PCI_SLOT_NAME=0000:c5:00.0\n")
    tree.file(f"{device}/mem_info_vram_total", "1\n")
    return tree.file(f"{device}/fw_version/mes_fw_version", f"{version}\n")


def due(root: Path) -> Tree:
    """A boot that an earlier run left due."""
    tree = strix_halo(root).file("/proc/sys/kernel/random/boot_id", "abc\n")
    marker = {"initramfs": True, "reboot": ["the driver was removed"], "boot_id": "abc"}
    return tree.file("/var/lib/lemonade-deploy/activation-due.json", json.dumps(marker))


def mes_in_debugfs(root: Path) -> Tree:
    """MES firmware 0x83, told by debugfs alone."""
    tree = strix_halo(root).file(
        "/sys/kernel/debug/dri/1/name", "amdgpu dev=0000:c5:00.0 unique=0000:c5:00.0\n"
    )
    text = (
        "MES_KIQ feature version: 6, fw version: 0x0000006f\nMES feature version: 1, fw version: 0x00000083\n"
    )
    return tree.file("/sys/kernel/debug/dri/1/amdgpu_firmware_info", text)


def passed_through(root: Path) -> Tree:
    """A GPU that is bound for a guest."""
    tree = bare(root).pci(0x1586, kind=0x038000).module(GOOD_KERNEL, "in-tree")
    return tree.link("/sys/bus/pci/devices/0000:c5:00.0/driver", "../../../bus/pci/drivers/vfio-pci")
