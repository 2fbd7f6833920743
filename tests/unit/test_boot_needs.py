# SPDX-License-Identifier: Apache-2.0
"""What a box lives on is found whatever hides it: bridges, tunnels, RAID, volumes, multipath."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_box import DISK, MODULES, NEW, box_of, driver, modules, passes, real, refusal

from lemonade_deploy.domain import boot_gate, mounts


def test_cards_beneath_a_bridge_and_on_ipv6_count(tmp_path: Path) -> None:
    box = box_of(tmp_path, *MODULES[:2])
    box.file("/proc/net/route", "Iface\n")
    assert passes(box) == [], "without a default route there is nothing to look for"
    box.file("/proc/net/ipv6_route", f"{'0' * 32} 00 {'0' * 32} 00 {'f' * 32} 400 1 0 3 br0\n")
    box.file("/sys/class/net/br0/lower_eth0")
    assert "eth0" in refusal(box).found


def test_parts_of_the_image_that_never_were_modules_are_not_asked_for(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    driver(box, "/sys/devices/pci0000:00", "pcieportdrv")
    assert passes(box) == []
    assert "pcieportdrv" in boot_gate.needs(box.host).root


def test_raid_and_volumes_beneath_the_root_are_followed(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    top, raid = "/sys/devices/virtual/block/dm-0", "/sys/devices/virtual/block/md1"
    box.file(f"{top}/dm/uuid", "LVM-x\n").file(f"{raid}/md/level", "raid5\n")
    box.link(f"{top}/slaves/md1", real(box, raid))
    box.link(f"{raid}/slaves/nvme0n1p2", real(box, f"{DISK}/nvme/nvme0/nvme0n1/nvme0n1p2"))
    box.link("/sys/dev/block/254:0", real(box, top))
    box.file(mounts.MOUNTINFO, "24 1 254:0 / / rw shared:1 - ext4 /dev/mapper/vg-root rw\n")
    assert boot_gate.needs(box.host).root == ("ext4", "dm_mod", "md_mod", "raid456", "nvme")


def test_a_root_that_names_no_device_number_is_found_by_its_source(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    box.file(mounts.MOUNTINFO, "24 1 0:27 /@ / rw shared:1 - btrfs /dev/nvme0n1p2 rw\n")
    box.link("/sys/class/block/nvme0n1p2", real(box, f"{DISK}/nvme/nvme0/nvme0n1/nvme0n1p2"))
    assert boot_gate.needs(box.host).root == ("btrfs", "nvme")


def test_nvme_with_native_multipath_is_driven_by_its_controllers(tmp_path: Path) -> None:
    """The disk is in a virtual subsystem, whose controllers are links beside it."""
    box = box_of(tmp_path)
    folder = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    box.file(f"{folder}/nvme0n1/nvme0n1p2/partition", "2\n")
    box.link(f"{folder}/nvme0", real(box, f"{DISK}/nvme/nvme0"))
    box.remove("/sys/dev/block/259:2").link("/sys/dev/block/259:2", real(box, f"{folder}/nvme0n1/nvme0n1p2"))
    assert boot_gate.needs(box.host).root == ("ext4", "nvme")
    modules(box, NEW, MODULES[0], MODULES[2])
    assert "has no nvme, which the root" in refusal(box).found


@pytest.mark.parametrize(
    ("uuid", "module"),
    [
        ("CRYPT-LUKS2-ab-root", "dm_crypt"),
        ("CRYPT-PLAIN-x", "dm_crypt"),
        ("CRYPT-VERITY-x", "dm_verity"),
        ("mpath-360", "dm_multipath"),
        ("LVM-ab", None),
    ],
)
def test_the_device_mappers_targets_are_modules_of_their_own(
    tmp_path: Path, uuid: str, module: str | None
) -> None:
    box = box_of(tmp_path)
    node = "/sys/devices/virtual/block/dm-0"
    box.file(f"{node}/dm/uuid", uuid + "\n").remove("/sys/dev/block/259:2")
    box.link("/sys/dev/block/259:2", real(box, node))
    box.link(f"{node}/slaves/nvme0n1p2", real(box, f"{DISK}/nvme/nvme0/nvme0n1/nvme0n1p2"))
    named = ("ext4", "dm_mod") + ((module,) if module else ()) + ("nvme",)
    assert boot_gate.needs(box.host).root == named


def test_beneath_a_tunnel_the_card_that_carries_it_counts(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    rest = "\t0003\t0\t0\t0\t"
    box.file(
        "/proc/net/route",
        f"Iface\tDestination\nwg0\t00000000\t00000000{rest}00000000\n"
        f"eth0\t0000A8C0\t00000000{rest}00FFFFFF\n",
    )
    box.file("/sys/class/net/wg0/uevent", "DEVTYPE=wireguard\nINTERFACE=wg0\n")
    assert boot_gate.needs(box.host).cards == {"wg0": "wireguard", "eth0": "r8169"}
    modules(box, NEW, *MODULES[:2])
    assert "r8169, which drives eth0" in refusal(box).found
