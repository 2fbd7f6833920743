# SPDX-License-Identifier: Apache-2.0
"""What must be true of a kernel before the host is rebooted into it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from driver_box import Box, initrd
from gate_box import MODULES, NEW, OLD, ROOT_MODULES, box_of, card, modules, passes, refusal

from lemonade_deploy.domain import boot_gate, kernel_modules, mounts
from lemonade_deploy.domain.refusal import Refused

ALIAS = "pci:v000010ECd00008125sv*sd*bc02sc00i00"


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
