# SPDX-License-Identifier: Apache-2.0
"""Which driver the simulated machine loads, and what it then shows."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from lab_disk import NEW, OLD, Disk, cpio, entry, entry_id

from lemonade_deploy.domain import cwsr
from lemonade_deploy.lab import firmware, initrd, kmod, modprobe, udev, view
from lemonade_deploy.lab.boot import Boot
from lemonade_deploy.lab.grubmenu import Stuck
from lemonade_deploy.lab.hardware import MACHINES

HALO = MACHINES["strix-halo"]


def power_up(disk: Disk) -> Boot:
    """Boot the disk in a Strix Halo machine."""
    return firmware.power_up(disk.root, HALO)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """A fixed kernel with its own driver."""
    return Disk(tmp_path).kernel(NEW, "fixed").grub()


def test_the_kernels_own_driver(disk: Disk) -> None:
    boot = power_up(disk)
    assert boot.driver is not None
    assert (boot.kernel, boot.driver.origin, boot.driver.version) == (NEW, "in-tree", None)
    assert (boot.driver.cwsr, boot.driver.ttm_module, boot.driver.stage) == ("fixed", "ttm", "initramfs")
    assert boot.cmdline == f"BOOT_IMAGE=/boot/vmlinuz-{NEW} root=/dev/nvme0n1p2 ro quiet splash"


def test_a_dkms_module_masks_it_and_brings_its_own_ttm(tmp_path: Path) -> None:
    disk = Disk(tmp_path).kernel(OLD, version="6.16.13").grub()
    disk.file("etc/modprobe.d/a.conf", "options amdttm pages_limit=111\noptions ttm pages_limit=222\n")
    disk.initrd(OLD)
    driver = power_up(disk).driver
    assert driver is not None
    assert (driver.origin, driver.version, driver.cwsr) == ("dkms", "6.16.13", "none")
    assert (driver.ttm_module, driver.ttm_parameters["pages_limit"]) == ("amdttm", "111")


def test_options_count_only_from_the_initramfs_that_has_the_driver(disk: Disk) -> None:
    disk.file("etc/modprobe.d/gtt.conf", "options ttm pages_limit=3932160\n")
    driver = power_up(disk).driver
    assert driver is not None
    assert driver.ttm_parameters["pages_limit"] != "3932160"
    driver = power_up(disk.initrd(NEW)).driver
    assert driver is not None
    assert driver.ttm_parameters["pages_limit"] == "3932160"


def test_the_command_line_wins_over_options(disk: Disk) -> None:
    disk.file("etc/modprobe.d/gtt.conf", "options ttm pages_limit=1\n").initrd(NEW)
    driver = power_up(disk.grub(arguments="ttm.pages_limit=77 amdgpu.cwsr_enable=0")).driver
    assert driver is not None
    assert driver.ttm_parameters["pages_limit"] == "77"
    assert driver.parameters["cwsr_enable"] == "0"


def test_a_blacklist_must_be_in_the_initramfs_and_on_the_disk_to_keep_the_driver_out(disk: Disk) -> None:
    blacklist = "etc/modprobe.d/blacklist-amdgpu.conf"
    disk.file(blacklist, "blacklist amdgpu\n")
    assert power_up(disk).driver is not None  # the archive is older than the file
    boot = power_up(disk.initrd(NEW))
    assert boot.driver is None
    assert "blacklisted by /etc/modprobe.d/blacklist-amdgpu.conf" in boot.reason
    (disk.root / blacklist).unlink()
    driver = power_up(disk).driver  # udev loads it again from the root file system
    assert driver is not None
    assert driver.stage == "root"


@pytest.mark.parametrize(
    "arguments", ["modprobe.blacklist=radeon,amdgpu", "module_blacklist=amdgpu", "nomodeset"]
)
def test_the_command_line_can_keep_it_out(disk: Disk, arguments: str) -> None:
    assert power_up(disk.grub(arguments=arguments)).driver is None


def test_no_module_or_one_of_another_kernel_is_no_driver(disk: Disk) -> None:
    base = disk.root / f"lib/modules/{NEW}"
    other = kmod.module_bytes(name="amdgpu", version=None, srcversion="B", vermagic=kmod.vermagic(OLD))
    for path in base.rglob("amdgpu.ko*"):
        path.write_bytes(other)
    assert "was built for" in power_up(disk.initrd(NEW)).reason
    (base / "modules.dep").unlink()
    boot = power_up(disk.initrd(NEW))
    assert (boot.driver, boot.reason.count("no amdgpu module")) == (None, 2)


def test_a_machine_without_an_amd_gpu_loads_nothing(disk: Disk) -> None:
    assert firmware.power_up(disk.root, MACHINES["no-gpu"]).driver is None


def test_a_truncated_initramfs_panics_and_comes_back_only_with_panic(tmp_path: Path) -> None:
    disk = Disk(tmp_path).kernel(OLD).kernel(NEW, "fixed")
    image = disk.root / f"boot/initrd.img-{NEW}"
    image.write_bytes(image.read_bytes()[:-400])
    once = {"saved_entry": entry_id(OLD), "next_entry": entry_id(NEW)}
    with pytest.raises(Stuck, match="no root file system"):
        power_up(disk.grub("${saved_entry}", **once))
    boot = power_up(disk.grub("${saved_entry}", arguments="panic=10", **once))
    assert boot.kernel == OLD
    with pytest.raises(Stuck, match="resets for ever"):
        power_up(disk.grub(arguments="panic=10"))


def test_a_kernel_does_what_its_image_says(tmp_path: Path) -> None:
    """Panics (the last panic= on the command line counts) or comes up without its wire."""
    disk = Disk(tmp_path).kernel(OLD).kernel(NEW, "fixed")
    once = {"saved_entry": entry_id(OLD), "next_entry": entry_id(NEW)}
    disk.file(f"boot/vmlinuz-{NEW}", b"kernel lab: panics")
    boot = power_up(disk.grub("${saved_entry}", arguments="panic=0 panic=30", **once))
    assert (boot.kernel, boot.network, len(boot.resets)) == (OLD, True, 1)
    assert "the kernel panics" in boot.resets[0]
    with pytest.raises(Stuck, match="the kernel panics"):
        power_up(disk.grub("${saved_entry}", arguments="panic=30 panic=0", **once))
    disk.file(f"boot/vmlinuz-{NEW}", b"kernel lab: no network")
    boot = power_up(disk.grub("${saved_entry}", **once))
    assert (boot.kernel, boot.network) == (NEW, False)


def test_what_the_kit_puts_into_the_menu_boots_as_it_says(tmp_path: Path) -> None:
    """The known-good kernel for a wrong id and for a kernel that is gone; the trial's own parameters."""
    disk = Disk(tmp_path).kernel(OLD).kernel(NEW, "fixed")
    ours = entry(OLD, "lemonade-deploy-good") + entry(
        NEW, "lemonade-deploy-trial", arguments=f"quiet panic=30 lemonade_deploy.trial={NEW}"
    )
    ours += 'set fallback="0"\n'
    one_shot = {"saved_entry": entry_id(OLD), "next_entry": "lemonade-deploy-trial"}
    boot = power_up(disk.grub("${saved_entry}", extra=ours, **one_shot))
    assert (boot.kernel, boot.cmdline.split()[-1]) == (NEW, f"lemonade_deploy.trial={NEW}")
    assert power_up(disk).kernel == OLD, "only once"
    assert power_up(disk.grub("${saved_entry}", extra=ours, saved_entry="no-such-id")).kernel == OLD
    (disk.root / f"boot/vmlinuz-{NEW}").unlink()
    assert power_up(disk.grub("${saved_entry}", extra=ours, **one_shot)).kernel == OLD


def test_firmware_of_the_driver_package_wins(disk: Disk) -> None:
    def blob(version: int) -> bytes:
        return struct.pack("<IIHHHHI", 32, 32, 1, 0, 11, 5, version)

    name = "amdgpu/gc_11_5_1_mes_2.bin"
    disk.file(f"lib/firmware/{name}.zst", kmod.zstd_stored(blob(0x80)))
    driver = power_up(disk).driver
    assert driver is not None
    assert driver.mes_firmware == 0x80
    disk.file(f"lib/firmware/updates/{name}", blob(0x83))
    driver = power_up(disk).driver
    assert driver is not None
    assert driver.mes_firmware == 0x83


# -- the view ---------------------------------------------------------------------------------


def shown(disk: Disk, folder: Path) -> Path:
    """What the machine shows after booting the disk."""
    view.write(folder / "view", HALO, power_up(disk), udev.permissions(disk.root))
    return folder / "view"


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_the_view_of_a_good_machine(disk: Disk, tmp_path: Path) -> None:
    disk.file("etc/modprobe.d/gtt.conf", "options ttm pages_limit=1000\n").initrd(NEW)
    disk.file("usr/lib/udev/rules.d/50.rules", 'SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="render"\n')
    disk.file("etc/udev/rules.d/70.rules", 'SUBSYSTEM=="kfd", GROUP="render", MODE="0666"\n')
    seen = shown(disk, tmp_path)
    properties = (seen / "class/kfd/kfd/topology/nodes/1/properties").read_text().splitlines()
    assert {"simd_count 80", "gfx_target_version 110501", "cwsr_size 19185664"} <= set(properties)
    assert "ctl_stack_size 16384" in properties
    device = seen / "class/drm/renderD128/device"
    assert (device / "mem_info_gtt_total").read_text() == f"{1000 * 4096}\n"
    assert not (device / "board_info").exists()  # lemond takes that for a discrete card
    assert (seen / "module/ttm/parameters/pages_limit").read_text() == "1000\n"
    assert not (seen / "module/amdgpu/version").exists()
    assert (seen / "pci/0000:c5:00.0/device").read_text() == "0x1586\n"
    kfd, render = (seen / "dev" / name for name in ("kfd", "dri/renderD128"))
    assert (kfd.stat().st_gid, kfd.stat().st_mode & 0o777) == (992, 0o666)
    assert (render.stat().st_gid, render.stat().st_mode & 0o777) == (992, 0o660)
    assert (seen / "proc/osrelease").read_text() == f"{NEW}\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_a_dark_machine_shows_its_pci_device_and_no_more(disk: Disk, tmp_path: Path) -> None:
    seen = shown(disk.grub(arguments="module_blacklist=amdgpu"), tmp_path)
    assert (seen / "pci/0000:c5:00.0").is_dir()
    for path in ("class/kfd", "class/drm/renderD128", "module/amdgpu", "dev/kfd"):
        assert not (seen / path).exists()


@pytest.mark.parametrize("machine", ["strix-halo", "strix-point", "rdna3-7900xtx", "rdna4-9070xt"])
@pytest.mark.parametrize("old", [True, False])
def test_the_labs_sizes_are_those_of_the_kits_formula(machine: str, old: bool) -> None:
    (gpu,) = MACHINES[machine].gpus
    cus = gpu.simd_count // gpu.simd_per_cu
    if old and gpu.gfx != "gfx1151":
        return
    if old:
        assert gpu.cwsr_sizes(old=True) == (13942784, 16384)
        return
    sizes = cwsr.expected(gpu.gfx, cus)
    assert gpu.cwsr_sizes() == (sizes.cwsr_size, sizes.ctl_stack_size)


def test_none_and_old_drivers_export_less() -> None:
    (gpu,) = HALO.gpus
    assert "cwsr_size" not in view.kfd_properties(gpu, 0, "none")
    assert "cwsr_size 13942784" in view.kfd_properties(gpu, 0, "old")


# -- readers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 200, 600])
def test_a_cut_initrd_is_told(tmp_path: Path, cut: int) -> None:
    whole = cpio({"usr/lib/a": b"a" * 700, "etc/b": b"b"})
    image = tmp_path / "initrd"
    image.write_bytes(whole)
    assert initrd.read(image) == {"lib/a": b"a" * 700, "etc/b": b"b"}
    image.write_bytes(whole.rstrip(b"\0")[:-cut])
    with pytest.raises(initrd.DamagedInitrd):
        initrd.read(image)


def test_modprobe_files_of_one_name_hide_each_other() -> None:
    files = {
        "lib/modprobe.d/x.conf": b"blacklist amdgpu\n",
        "etc/modprobe.d/x.conf": b"# blacklist amdgpu\noptions amd-gpu a=1 \\\n b=2\n",
        "etc/modprobe.d/y.txt": b"blacklist amdgpu\n",
        "etc/modprobe.d/z.conf": b"install ttm /bin/false\n",
    }
    config = modprobe.config(files, "quiet")
    assert config.blacklist == {}
    assert config.disabled == {"ttm": "/etc/modprobe.d/z.conf"}
    assert config.options == {"amd_gpu": {"a": "1", "b": "2"}}
