# SPDX-License-Identifier: Apache-2.0
"""The distribution's firmware is there before AMD's package goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from driver_box import Box, dirty, names
from trees import OLD_KERNEL

from lemonade_deploy.domain import driver_firmware, driver_plan, driver_state, gfx
from lemonade_deploy.domain.change import apply_all
from lemonade_deploy.domain.refusal import Refused

OK = "install ok installed"
FILES = [f"gc_11_5_1_{part}.bin" for part in ("me", "mec", "pfp", "rlc")]


def halo(tmp_path: Path) -> Box:
    box = dirty(tmp_path)
    box.pci(0x1586)
    return box


def lay(box: Box, files: Sequence[str] = FILES, folder: str = "/lib/firmware/amdgpu") -> Box:
    for name in files:
        box.file(f"{folder}/{name}.zst")
    return box


def offer(box: Box, version: str) -> Box:
    """What apt has of the firmware package."""
    box.on(
        *("apt-cache", "show", "linux-firmware"),
        stdout=f"Package: linux-firmware\nVersion: {version}\nArchitecture: all\n\n",
    )
    uri = f"'http://archive/linux-firmware.deb' linux-firmware_{version}_all.deb 1 x\n"
    box.on("apt-get", "--print-uris", f"linux-firmware={version}", stdout=uri)
    return box


def test_files_are_asked_for_by_gpu(tmp_path: Path) -> None:
    box = halo(tmp_path)
    assert driver_firmware.missing(box.host) == FILES
    lay(box, folder="/lib/firmware/updates/amdgpu")
    assert driver_firmware.missing(box.host) == FILES, "the shadow is what goes"
    lay(box, FILES[:3])
    assert driver_firmware.missing(box.host) == ["gc_11_5_1_rlc.bin"]
    lay(box, FILES[3:], f"/lib/firmware/{OLD_KERNEL}/amdgpu")
    assert driver_firmware.missing(box.host, OLD_KERNEL) == []
    box.pci(0x744C, "0000:03:00.0")
    assert driver_firmware.missing(box.host, OLD_KERNEL)[0] == "gc_11_0_0_me.bin"


def test_one_of_two_chips_is_enough(tmp_path: Path) -> None:
    box = Box(tmp_path).pci(0x15BF)
    assert driver_firmware.missing(box.host)
    lay(box, [f"gc_11_0_4_{part}.bin" for part in driver_firmware.PARTS])
    assert driver_firmware.missing(box.host) == []


def test_every_family_with_a_bundle_has_its_files_named() -> None:
    assert set(gfx.FAMILIES) <= set(driver_firmware.CORES)


def test_missing_firmware_is_installed_before_the_purge(tmp_path: Path) -> None:
    box = offer(halo(tmp_path), "2.27")
    order: list[str] = []
    box.on(
        "apt-get", "install", "linux-firmware", do=lambda _argv, _env: (order.append("install"), lay(box))[0]
    )
    box.on("apt-get", "purge", do=lambda _argv, _env: order.append("purge"))
    state = driver_state.read(box.host)
    changes = driver_plan.plan_intree(state, driver_firmware.plan(box.host, "amdgpu_driver", OLD_KERNEL))
    assert names(changes)[0] == ("package linux-firmware", "install")
    apply_all(changes, box.host)
    assert order == ["install", "purge"]
    assert driver_firmware.plan(box.host, "amdgpu_driver", OLD_KERNEL) == []


def test_a_package_that_brings_nothing_stops_before_the_purge(tmp_path: Path) -> None:
    box = offer(halo(tmp_path), "2.27")
    changes = driver_plan.plan_intree(
        driver_state.read(box.host), driver_firmware.plan(box.host, "amdgpu_driver", OLD_KERNEL)
    )
    with pytest.raises(Refused, match="did not bring gc_11_5_1_me"):
        apply_all(changes, box.host)
    assert not [argv for argv in box.ran("apt-get") if "purge" in argv and "-s" not in argv]


@pytest.mark.parametrize(
    ("installed", "offered", "told"),
    [
        ("2.27", "2.27", "linux-firmware 2.27 is installed and lacks them"),
        ("", "", "apt has no linux-firmware"),
    ],
)
def test_where_apt_has_nothing_better_it_names_the_package(
    tmp_path: Path, installed: str, offered: str, told: str
) -> None:
    box = halo(tmp_path)
    if installed:
        box.dpkg({"linux-firmware": (installed, OK), "amdgpu-dkms": ("1:6.16.13-1", OK)})
    if offered:
        offer(box, offered)
    with pytest.raises(Refused, match=told) as refusal:
        driver_firmware.plan(box.host, "amdgpu_driver", OLD_KERNEL)
    assert "linux-firmware" in refusal.value.remedy


def test_debians_package_has_another_name(tmp_path: Path) -> None:
    box = halo(tmp_path).distribution("debian", "13", "trixie")
    with pytest.raises(Refused, match="firmware-amd-graphics"):
        driver_firmware.plan(box.host, "amdgpu_driver", OLD_KERNEL)
