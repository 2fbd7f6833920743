# SPDX-License-Identifier: Apache-2.0
"""Hosts on which a kernel could not fall back are refused before anything is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from driver_box import Box

from lemonade_deploy.domain import boot_facts, boot_loader, grub, mounts
from lemonade_deploy.domain.refusal import Refused

DISK = "/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1"
MOUNT = "24 1 {device} / {point} rw,relatime shared:1 - {type} {source} rw\n"


def box_of(tmp_path: Path, **mount: str) -> Box:
    """A box with GRUB on an ext4 partition of an NVMe disk; *mount* changes what holds /boot/grub."""
    box = Box(tmp_path)
    box.kernels("6.14.0-37-generic")
    box.file(f"{DISK}/size").file(f"{DISK}/nvme0n1p2/partition", "2\n")
    block(box, "259:2", f"{DISK}/nvme0n1p2")
    given = {"device": "259:2", "point": "/", "type": "ext4", "source": "/dev/nvme0n1p2", **mount}
    box.file(mounts.MOUNTINFO, MOUNT.format(**given))
    return box.on("grub-probe", "--target=fs", stdout="ext2\n").on("grub-probe", "--target=abstraction")


def block(box: Box, number: str, node: str) -> None:
    """/sys/dev/block/NUMBER → NODE, as sysfs links it."""
    box.link(f"/sys/dev/block/{number}", str(box.root / node.lstrip("/")))


def refusal(box: Box) -> Refused:
    with pytest.raises(Refused) as raised:
        boot_loader.demand(box.host)
    return raised.value


def test_a_plain_disk_is_fine(tmp_path: Path) -> None:
    boot_loader.demand(box_of(tmp_path).host)


@pytest.mark.parametrize("type_", ["btrfs", "zfs", "f2fs", "bcachefs", "squashfs"])
def test_file_systems_that_grub_does_not_write(tmp_path: Path, type_: str) -> None:
    found = refusal(box_of(tmp_path, type=type_, device="0:31", source="/dev/nvme0n1p2"))
    assert type_ in found.found
    assert "kernel_source: keep" in found.remedy and "by hand" in found.remedy


def md(box: Box) -> None:
    box.file("/sys/devices/virtual/block/md0/md/level", "raid1\n")
    block(box, "9:0", "/sys/devices/virtual/block/md0")


def lvm(box: Box) -> None:
    folder = "/sys/devices/virtual/block/dm-0"
    box.file(f"{folder}/dm/uuid", "LVM-abcdef\n").file(f"{folder}/dm/name", "vg-boot\n")
    block(box, "9:0", folder)


def crypt(box: Box) -> None:
    box.file("/sys/devices/virtual/block/dm-0/dm/uuid", "CRYPT-LUKS2-ab-luks\n")
    block(box, "9:0", "/sys/devices/virtual/block/dm-0")


def over_md(box: Box) -> None:
    """A partition on a software RAID."""
    box.file("/sys/devices/virtual/block/md0/md/level", "raid1\n")
    box.file("/sys/devices/virtual/block/md0/md0p1/partition", "1\n")
    block(box, "9:0", "/sys/devices/virtual/block/md0/md0p1")


def beneath(box: Box) -> None:
    """Multipath over a RAID: what is wrong is a layer below."""
    box.file("/sys/devices/virtual/block/dm-0/dm/uuid", "mpath-360\n")
    box.file("/sys/devices/virtual/block/md0/md/level", "raid1\n")
    box.link("/sys/devices/virtual/block/dm-0/slaves/md0", str(box.root / "sys/devices/virtual/block/md0"))
    block(box, "9:0", "/sys/devices/virtual/block/dm-0")


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (md, "software RAID (md0)"),
        (lvm, "LVM (vg-boot)"),
        (crypt, "device mapper (CRYPT)"),
        (over_md, "software RAID (md0)"),
        (beneath, "software RAID (md0)"),
    ],
)
def test_devices_that_grub_does_not_write_through(
    tmp_path: Path, build: Callable[[Box], None], named: str
) -> None:
    box = box_of(tmp_path, device="9:0", source="/dev/x")
    build(box)
    assert named in refusal(box).found


def test_multipath_is_a_disk_to_grub(tmp_path: Path) -> None:
    box = box_of(tmp_path, device="9:0", source="/dev/mapper/mpatha")
    box.file("/sys/devices/virtual/block/dm-0/dm/uuid", "part1-mpath-360\n")
    block(box, "9:0", "/sys/devices/virtual/block/dm-0")
    boot_loader.demand(box.host)


def test_it_is_the_file_system_of_boot_grub_that_counts(tmp_path: Path) -> None:
    """LVM root with a plain /boot is fine; a plain root with /boot on RAID is not."""
    box = box_of(tmp_path, device="9:0", source="/dev/mapper/vg-root")
    lvm(box)
    root = str(box.text(mounts.MOUNTINFO))
    boot = MOUNT.format(device="259:2", point="/boot", type="ext4", source="/dev/nvme0n1p2")
    box.file(mounts.MOUNTINFO, root + boot)
    boot_loader.demand(box.host)
    box.file(mounts.MOUNTINFO, root.replace("9:0", "259:2") + boot.replace("259:2", "9:0"))
    assert "mounted at /boot" in refusal(box).found


def test_a_mount_over_a_mount_counts(tmp_path: Path) -> None:
    text = MOUNT.format(device="0:1", point="/", type="zfs", source="x")
    text += MOUNT.format(device="259:2", point="/", type="ext4", source="/dev/x")
    mount = mounts.holding(Box(tmp_path).file(mounts.MOUNTINFO, text).host, "/boot/grub")
    assert mount is not None and mount.type == "ext4"
    assert mounts.parse("24 1 8:1 / /a\\040b rw - ext4 /dev/x rw\n")[0].point == "/a b"
    assert mounts.holding(Box(tmp_path).host, "/bootx") == mount


@pytest.mark.parametrize(
    ("target", "answer", "named"),
    [
        ("abstraction", "diskfilter mdraid1x\n", "mdraid1x"),
        ("fs", "btrfs\n", "GRUB does not write on btrfs"),
        ("fs", "", "an unknown file system"),
    ],
)
def test_grubs_own_view_must_agree(tmp_path: Path, target: str, answer: str, named: str) -> None:
    box = box_of(tmp_path).on("grub-probe", f"--target={target}", stdout=answer)
    assert named in refusal(box).found


def test_a_grub_that_sees_no_disk_is_no_grub_to_fall_back_with(tmp_path: Path) -> None:
    box = box_of(tmp_path).on("grub-probe", rc=1, stderr="grub-probe: error: cannot find a device for /.\n")
    assert "cannot find a device" in refusal(box).found


def test_a_linked_environment_block_is_another_one_than_grub_reads(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    box.remove(grub.GRUBENV)
    box.link(grub.GRUBENV, "../efi/EFI/fedora/grubenv")
    assert "is a link" in refusal(box).found


def test_a_read_only_boot_is_told_with_its_remedy(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    box.file(mounts.MOUNTINFO, str(box.text(mounts.MOUNTINFO)).replace("rw,relatime", "ro,relatime"))
    assert "remount,rw" in refusal(box).remedy


def test_a_file_system_that_went_read_only_after_an_error_is_told(tmp_path: Path) -> None:
    """The mount's own options still say rw then."""
    box = box_of(tmp_path)
    text = str(box.text(mounts.MOUNTINFO)).replace("/dev/nvme0n1p2 rw", "/dev/nvme0n1p2 ro,errors=remount-ro")
    box.file(mounts.MOUNTINFO, text)
    found = refusal(box)
    assert "file system itself is read-only" in found.found
    assert "fsck" in found.remedy


LOADERS = [
    ("/boot/loader/loader.conf", "systemd-boot", "bootctl set-oneshot"),
    ("/boot/extlinux/extlinux.conf", "extlinux", "extlinux.conf"),
    ("/etc/nothing", "another boot loader", "by hand"),
]


@pytest.mark.parametrize(("file", "named", "how"), LOADERS)
def test_another_boot_loader_is_named_with_its_manual_way(
    tmp_path: Path, file: str, named: str, how: str
) -> None:
    box = box_of(tmp_path)
    box.remove(grub.GRUB_CFG)
    box.file(file)
    found = refusal(box)
    assert named in found.found
    assert how in found.remedy


def test_a_left_over_grub_cfg_is_not_what_starts_the_box(tmp_path: Path) -> None:
    """systemd-boot says so in the EFI variable; GRUB, which writes it as well, is fine."""
    box, variable = box_of(tmp_path), boot_facts._VARIABLE.format("LoaderInfo")
    box.file(variable, b"\x06\0\0\0" + "systemd-boot 257.9\0".encode("utf-16-le"))
    assert "systemd-boot 257.9 starts this host" in refusal(box).found
    box.file(variable, b"\x06\0\0\0" + "GRUB 2.12\0".encode("utf-16-le"))
    boot_loader.demand(box.host)


def test_entries_of_the_boot_loader_specification_are_not_ours_to_set(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    box.file(grub.GRUB_CFG, "insmod blscfg\nblscfg\n")
    assert "blscfg" in refusal(box).found
