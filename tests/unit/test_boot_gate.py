# SPDX-License-Identifier: Apache-2.0
"""What must be true of a kernel before the host is rebooted into it."""

from __future__ import annotations

import gzip
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest
from driver_box import Box, initrd
from hypothesis import given, settings
from hypothesis import strategies as st

from lemonade_deploy.domain import boot_gate, initrd_archive, kernel_modules, mounts
from lemonade_deploy.domain.refusal import Refused

OLD, NEW = "6.14.0-37-generic", "7.0.0-31-generic"
NIC = "/sys/devices/pci0000:00/0000:02:00.0"
DISK = "/sys/devices/pci0000:00/0000:01:00.0"
ALIAS = "pci:v000010ECd00008125sv*sd*bc02sc00i00"
BUILTIN = "kernel/drivers/scsi/scsi_mod.ko\n"
MODULES = (
    "kernel/fs/ext4/ext4.ko.zst",
    "kernel/drivers/nvme/host/nvme.ko.zst",
    "kernel/drivers/net/ethernet/realtek/r8169.ko.zst",
)
ROOT_MODULES = MODULES[:2]


def real(box: Box, path: str) -> str:
    return str(box.root / path.lstrip("/"))


def modules(box: Box, release: str, *paths: str, builtin: str = BUILTIN) -> None:
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
    box.file(f"{node}/modalias", "pci:v000010ECd00008125sv00001043sd00008798bc02sc00i00\n")
    driver(box, node, module)
    box.link(f"/sys/class/net/{interface}/device", real(box, node))


def refusal(box: Box, origin: str = "in-tree") -> Refused:
    with pytest.raises(Refused) as raised:
        boot_gate.demand(box.host, NEW, origin, lambda _text: None)
    return raised.value


def passes(box: Box, origin: str = "in-tree") -> list[str]:
    """The warnings of a gate that lets the boot through."""
    told: list[str] = []
    boot_gate.demand(box.host, NEW, origin, told.append)
    return told


def test_a_kernel_with_everything_passes(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    assert passes(box) == []
    wanted = boot_gate.needs(box.host)
    assert (wanted.root, wanted.cards) == (("ext4", "nvme"), {"eth0": "r8169"})


def test_what_is_built_in_need_not_be_in_the_initrd(tmp_path: Path) -> None:
    box = box_of(tmp_path, held=())
    modules(box, NEW, MODULES[2], builtin="kernel/fs/ext4/ext4.ko\nkernel/drivers/nvme/host/nvme.ko\n")
    assert passes(box) == []


@pytest.mark.parametrize(
    ("lost", "named"),
    [(0, "has no ext4, which the root"), (1, "has no nvme, which the root"), (2, "r8169, which drives eth0")],
)
def test_a_driver_that_the_box_lives_on_is_missing(tmp_path: Path, lost: int, named: str) -> None:
    left = tuple(path for number, path in enumerate(MODULES) if number != lost)
    found = refusal(box_of(tmp_path, *left))
    assert named in found.found
    assert found.remedy


@pytest.mark.parametrize("lost", [0, 1])
def test_a_root_driver_that_is_not_in_the_initrd(tmp_path: Path, lost: int) -> None:
    box = box_of(tmp_path, held=(ROOT_MODULES[1 - lost],))
    assert f"lacks {('ext4', 'nvme')[lost]}" in refusal(box).found


def test_a_card_that_another_driver_takes_is_no_reason_to_refuse(tmp_path: Path) -> None:
    """r8125 by DKMS here, r8169 of the kernel there."""
    box = box_of(tmp_path, *MODULES[:2], "kernel/drivers/net/ethernet/realtek/r8126.ko.zst")
    assert "r8169" in refusal(box).found
    box.file(f"/lib/modules/{NEW}/modules.alias", f"# x\nalias {ALIAS} r8126\n")
    assert passes(box) == []


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


def test_a_kernel_without_its_lists_is_not_booted(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    modules(box, NEW, builtin="")
    assert "neither modules.dep nor modules.builtin" in refusal(box).found


# -- other DKMS modules ----------------------------------------------------------------------------


def dkms(box: Box, module: str, *kernels: str) -> None:
    for kernel in kernels:
        box.file(f"/var/lib/dkms/{module}/9.1/{kernel}/x86_64/module/{module}.ko.zst")


def test_another_dkms_module_that_is_not_built_is_named_and_no_refusal(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    dkms(box, "v4l2loopback", OLD)
    dkms(box, "vendor-reset", OLD, NEW)
    dkms(box, "unused", NEW)
    (warning,) = passes(box)
    assert "v4l2loopback 9.1" in warning and NEW in warning


def test_a_card_that_lives_on_an_unbuilt_dkms_module_is_a_refusal_that_names_it(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    modules(box, OLD, *MODULES, "updates/dkms/r8125.ko.zst")
    card(box, "eth1", "/sys/devices/pci0000:00/0000:03:00.0", "r8125")
    box.file("/proc/net/route", "Iface\neth1\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\n")
    dkms(box, "r8125", OLD)
    assert "DKMS has not built r8125 9.1 for it" in refusal(box).found
    modules(box, NEW, *MODULES, "updates/dkms/r8125.ko.zst")
    dkms(box, "r8125", NEW)
    assert passes(box) == []


# -- ZFS -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "release", "refused"),
    [
        ("zfs", "6.18.20-061820-generic", True),
        ("zfs", NEW, False),
        ("ext4", "6.18.20-061820-generic", False),
    ],
)
def test_mainline_has_no_zfs(tmp_path: Path, type_: str, release: str, refused: bool) -> None:
    box = Box(tmp_path).file(mounts.MOUNTINFO, f"24 1 0:27 / / rw shared:1 - {type_} rpool/ROOT rw\n")
    if refused:
        with pytest.raises(Refused, match="ZFS"):
            boot_gate.demand_root(box.host, release)
    else:
        boot_gate.demand_root(box.host, release)


# -- the initrd ------------------------------------------------------------------------------------


def test_an_initrd_that_is_missing_empty_or_has_no_init(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    image = f"/boot/initrd.img-{NEW}"
    box.file(image, gzip.compress(gzip.decompress(initrd(NEW, *ROOT_MODULES)).replace(b"init\0", b"xnit\0")))
    assert "has no /init" in refusal(box).found
    box.file(image)
    assert "it is empty" in refusal(box).found
    box.remove(image)
    assert f"has no {image}" in refusal(box).found


def test_an_initrd_with_the_other_driver_is_not_booted(tmp_path: Path) -> None:
    box = box_of(tmp_path, held=(*ROOT_MODULES, "updates/dkms/amdgpu.ko.zst"))
    assert "holds another amdgpu" in refusal(box).found
    assert passes(box, "dkms") == []
    inner = "kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko.zst"
    box = box_of(tmp_path / "b", held=(*ROOT_MODULES, inner))
    assert passes(box) == []
    assert "holds another amdgpu" in refusal(box, "dkms").found


def packed(archive: bytes, how: str) -> bytes:
    if how == "plain":
        return archive
    if how == "gzip":
        return gzip.compress(archive)
    if how == "xz":
        return lzma.compress(archive, check=lzma.CHECK_CRC32)
    if shutil.which(how) is None:
        pytest.skip(f"{how} is not installed")
    argv = [how, "-qc", *(["-l"] if how == "lz4" else [])]
    return subprocess.run(argv, input=archive, capture_output=True, check=True).stdout


@pytest.mark.parametrize("how", ["plain", "gzip", "xz", "zstd", "lz4"])
def test_archives_of_every_packing_are_read_and_each_cut_is_seen(tmp_path: Path, how: str) -> None:
    early = gzip.decompress(initrd("microcode")).replace(b"init\0", b"ucod\0")
    main = packed(gzip.decompress(initrd(NEW, *MODULES)), how)
    image = tmp_path / "initrd"
    image.write_bytes(early + b"\0" * 512 + main)
    names = initrd_archive.names(str(image))
    assert {"ucod", "init"} <= names
    assert f"lib/modules/{NEW}/{MODULES[0]}" in names, "usr/ is left out"
    for cut in (3, len(main) // 2, len(main) - 20):
        image.write_bytes(early + b"\0" * 512 + main[:-cut])
        with pytest.raises(initrd_archive.Damaged):
            initrd_archive.names(str(image))


def test_rubbish_behind_the_archive_is_seen(tmp_path: Path) -> None:
    image = tmp_path / "initrd"
    image.write_bytes(gzip.decompress(initrd(NEW)) + b"rubbish")
    with pytest.raises(initrd_archive.Damaged, match="neither an archive nor packed"):
        initrd_archive.names(str(image))
    image.write_bytes(gzip.compress(b"no archive at all"))
    with pytest.raises(initrd_archive.Damaged, match="holds no archive"):
        initrd_archive.names(str(image))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_no_cut_of_a_plain_image_passes_as_whole(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    whole = gzip.decompress(initrd(NEW, *MODULES)).rstrip(b"\0")
    image = tmp_path_factory.getbasetemp() / "cut"
    image.write_bytes(whole[: cut % len(whole)])
    with pytest.raises(initrd_archive.Damaged):
        initrd_archive.names(str(image))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("kernel/drivers/virtio/virtio-pci.ko.zst", "virtio_pci"),
        ("x.ko", "x"),
        ("../../module/snd-hda-intel", "snd_hda_intel"),
        ("a/b.ko.xz", "b"),
    ],
)
def test_names_of_modules(path: str, name: str) -> None:
    assert kernel_modules.name_of(path) == name


# -- what hides the hardware -----------------------------------------------------------------------


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
