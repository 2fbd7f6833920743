# SPDX-License-Identifier: Apache-2.0
"""GPUs from PCI, KFD and DRM."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import GOOD_KERNEL, GOOD_SIZES, Tree, bare, radeon, strix_halo

from lemonade_deploy.domain import gpus, kfd, pci


def test_strix_halo_is_told_from_all_sides(tmp_path: Path) -> None:
    tree = strix_halo(tmp_path)
    device = "/sys/class/drm/card0/device"
    tree.file(f"{device}/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:c5:00.0\n")
    tree.file(f"{device}/mem_info_vram_total", "536870912\n").file(
        f"{device}/mem_info_gtt_total", "1073741824\n"
    )
    tree.file(f"{device}/fw_version/mes_fw_version", "0x00000080\n")
    (gpu,) = gpus.read_gpus(tree.host, "in-tree")
    assert (gpu.gfx, gpu.family, gpu.apu, gpu.support) == ("gfx1151", "gfx1151", True, "validated")
    assert (gpu.node, gpu.cu_count, gpu.driver, gpu.cwsr) == (1, 40, "in-tree", "ok")
    assert (gpu.cwsr_size, gpu.ctl_stack_size) == GOOD_SIZES
    assert (gpu.expected_cwsr_size, gpu.expected_ctl_stack_size) == GOOD_SIZES
    assert (gpu.vram, gpu.gtt, gpu.mes_firmware) == (536870912, 1073741824, 0x80)


def test_a_gpu_without_kfd_is_still_there(tmp_path: Path) -> None:
    (gpu,) = gpus.read_gpus(bare(tmp_path).pci(0x1586).host, "none")
    assert (gpu.gfx, gpu.node, gpu.driver, gpu.cwsr, gpu.expected_cwsr_size) == (
        "gfx1151",
        None,
        "none",
        "missing",
        None,
    )


def test_kfd_alone_makes_no_gpu(tmp_path: Path) -> None:
    tree = bare(tmp_path).cpu_node().kfd_gpu(1, 110501, 0x1586, 80, GOOD_SIZES)
    found, stray = gpus.survey(tree.host, "in-tree")
    assert (found, [node.number for node in stray]) == ([], [1])


@pytest.mark.parametrize(
    ("vendor", "device", "kind"),
    [
        (0x10DE, 0x1586, 0x030000),  # another vendor's device of the same number
        (0x1002, 0xAB30, 0x040300),  # the audio function of an AMD card
        (0x1002, 0x7446, 0x0C0330),  # its USB function
        (0x1022, 0x17E0, 0x108000),
    ],
)
def test_other_devices_are_no_gpus(tmp_path: Path, vendor: int, device: int, kind: int) -> None:
    assert pci.read_gpus(bare(tmp_path).pci(device, kind=kind, vendor=vendor).host) == []


def test_unlisted_device_takes_its_isa_from_its_driver(tmp_path: Path) -> None:
    tree = bare(tmp_path).pci(0x7FFF).kfd_gpu(1, 110002, 0x7FFF, 64, (11157504, 16384))
    (gpu,) = gpus.read_gpus(tree.host, "in-tree")
    assert (gpu.gfx, gpu.family, gpu.listed, gpu.cwsr) == ("gfx1102", "gfx110X", False, "ok")
    (dark,) = gpus.read_gpus(bare(tmp_path / "dark").pci(0x7FFF).host, "none")
    assert (dark.gfx, dark.family) == ("unknown", None)


def test_table_outranks_what_kfd_claims(tmp_path: Path) -> None:
    tree = bare(tmp_path).pci(0x1586).kfd_gpu(1, 110000, 0x1586, 80, GOOD_SIZES)
    (gpu,) = gpus.read_gpus(tree.host, "in-tree")
    assert (gpu.gfx, gpu.kfd_gfx, gpu.cwsr) == ("gfx1151", "gfx1100", "ok")


def test_two_equal_cards_are_joined_by_address(tmp_path: Path) -> None:
    tree = bare(tmp_path).pci(0x744C, "0000:03:00.0").pci(0x744C, "0000:83:00.0")
    tree.kfd_gpu(1, 110000, 0x744C, 192, None, "domain 0\nlocation_id 33536\n")  # 0x83 << 8
    tree.kfd_gpu(2, 110000, 0x744C, 192, (46047232, 40960), "domain 0\nlocation_id 768\n")
    first, second = gpus.read_gpus(tree.host, "in-tree")
    assert (first.pci, first.node, first.cwsr) == ("0000:03:00.0", 2, "ok")
    assert (second.pci, second.node, second.cwsr) == ("0000:83:00.0", 1, "missing")


def test_equal_cards_without_addresses_are_joined_in_order(tmp_path: Path) -> None:
    tree = bare(tmp_path).pci(0x7550, "0000:03:00.0").pci(0x7550, "0000:04:00.0")
    tree.kfd_gpu(1, 120001, 0x7550, 128, None).kfd_gpu(2, 120001, 0x7550, 128, None)
    assert [gpu.node for gpu in gpus.read_gpus(tree.host, "in-tree")] == [1, 2]


def test_a_discrete_card_serves_before_an_apu(tmp_path: Path) -> None:
    tree = radeon(tmp_path).pci(0x150E, "0000:01:00.0").kfd_gpu(2, 110500, 0x150E, 32, (5578752, 8192))
    read = gpus.read_gpus(tree.host, "in-tree")
    assert [gpu.gfx for gpu in read] == ["gfx1150", "gfx1100"]
    assert [gpu.gfx for gpu in gpus.supported(read)] == ["gfx1100", "gfx1150"]


@pytest.mark.parametrize(("simds", "size", "control"), [(64, 15351808, 16384), (32, 7675904, 8192)])
def test_smaller_strix_halos(tmp_path: Path, simds: int, size: int, control: int) -> None:
    tree = bare(tmp_path).pci(0x1586).kfd_gpu(1, 110501, 0x1586, simds, (size, control))
    (gpu,) = gpus.read_gpus(tree.host, "in-tree")
    assert (gpu.cu_count, gpu.cwsr) == (simds // 2, "ok")


def test_damaged_properties_do_not_stop_the_look(tmp_path: Path) -> None:
    tree = strix_halo(tmp_path)
    tree.file(
        "/sys/class/kfd/kfd/topology/nodes/1/properties", b"\xff\xfe\x00gfx_target_version abc\nsimd_count\n"
    )
    tree.file("/sys/class/kfd/kfd/topology/nodes/junk/properties", "simd_count 5\n")
    tree.file("/sys/bus/pci/devices/0000:99:00.0/vendor", "0x1002\n")  # no device id
    tree.file("/sys/bus/pci/devices/0000:98:00.0/vendor", b"\xff\n")
    (gpu,) = gpus.read_gpus(tree.host, "in-tree")
    assert gpu.node is None


@given(st.text())
def test_any_text_is_parsed_as_properties(text: str) -> None:
    node = kfd.parse_node(1, "x", text)
    assert node is None or node.number == 1


def test_properties_are_read_line_by_line() -> None:
    text = "simd_count 80\nxcwsr_size 5\ncwsr_size  7\ncwsr_size 19185664\r\nname gfx\nctl_stack_size 16384"
    assert kfd.properties(text) == {
        "simd_count": 80,
        "xcwsr_size": 5,
        "cwsr_size": 19185664,
        "ctl_stack_size": 16384,
    }


def test_reading_changes_nothing(tmp_path: Path) -> None:
    tree: Tree = strix_halo(tmp_path, GOOD_KERNEL)
    before = tree.snapshot()
    gpus.read_gpus(tree.host, "in-tree")
    assert tree.snapshot() == before
