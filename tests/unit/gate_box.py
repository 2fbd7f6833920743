# SPDX-License-Identifier: Apache-2.0
"""A box and the kernel it is to be rebooted into, for tests of what must be true of that kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_box import Box, initrd

from lemonade_deploy.domain import boot_gate, mounts
from lemonade_deploy.domain.refusal import Refused

OLD, NEW = "6.14.0-37-generic", "7.0.0-31-generic"
NIC = "/sys/devices/pci0000:00/0000:02:00.0"
DISK = "/sys/devices/pci0000:00/0000:01:00.0"
BUILTIN = "kernel/drivers/scsi/scsi_mod.ko\n"
MODULES = (
    "kernel/fs/ext4/ext4.ko.zst",
    "kernel/drivers/nvme/host/nvme.ko.zst",
    "kernel/drivers/net/ethernet/realtek/r8169.ko.zst",
)
ROOT_MODULES = MODULES[:2]


def real(box: Box, path: str) -> str:
    """Where a path of the box really is."""
    return str(box.root / path.lstrip("/"))


def modules(box: Box, release: str, *paths: str, builtin: str = BUILTIN) -> None:
    """The lists that depmod writes for a kernel: modules at these paths, and what is built in."""
    box.file(f"/lib/modules/{release}/modules.dep", "".join(f"{path}:\n" for path in paths))
    box.file(f"/lib/modules/{release}/modules.builtin", builtin)


def box_of(tmp_path: Path, *new: str, held: tuple[str, ...] = ROOT_MODULES) -> Box:
    """ext4 on NVMe, r8169 as the card of the default route; the new kernel has *new* (all by default)."""
    box = Box(tmp_path)
    box.kernel(OLD)
    box.kernels(OLD, NEW)
    modules(box, OLD, *MODULES)
    modules(box, NEW, *(new or MODULES))
    box.file(f"/boot/initrd.img-{NEW}", initrd(NEW, *held))
    box.file(mounts.MOUNTINFO, "24 1 259:2 / / rw shared:1 - ext4 /dev/nvme0n1p2 rw\n")
    box.file(f"{DISK}/nvme/nvme0/nvme0n1/nvme0n1p2/partition", "2\n")
    box.link("/sys/dev/block/259:2", real(box, f"{DISK}/nvme/nvme0/nvme0n1/nvme0n1p2"))
    driver(box, DISK, "nvme")
    box.file("/proc/net/route", "Iface\tDestination\neth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\n")
    card(box, "eth0", NIC, "r8169")
    return box


def driver(box: Box, node: str, module: str) -> None:
    """NODE/driver → a driver, whose module is MODULE."""
    folder = f"/sys/bus/pci/drivers/{module}"
    box.file(f"/sys/module/{module}/initstate", "live\n").file(f"{folder}/bind")
    box.link(f"{folder}/module", real(box, f"/sys/module/{module}"))
    box.link(f"{node}/driver", real(box, folder))


def card(box: Box, interface: str, node: str, module: str) -> None:
    """A network card at *node* that *module* drives."""
    box.file(f"{node}/modalias", "pci:v000010ECd00008125sv00001043sd00008798bc02sc00i00\n")
    driver(box, node, module)
    box.link(f"/sys/class/net/{interface}/device", real(box, node))


def refusal(box: Box, origin: str = "in-tree") -> Refused:
    """What the gate says no with."""
    with pytest.raises(Refused) as raised:
        boot_gate.demand(box.host, NEW, origin, lambda _text: None)
    return raised.value


def passes(box: Box, origin: str = "in-tree") -> list[str]:
    """The warnings of a gate that lets the boot through."""
    told: list[str] = []
    boot_gate.demand(box.host, NEW, origin, told.append)
    return told
