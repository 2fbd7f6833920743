# SPDX-License-Identifier: Apache-2.0
"""Writes what a booted machine shows: sysfs trees, /proc files and device nodes.

The files are bound into the host; the rest of /sys stays the machine's own, which
lscpu and vLLM's CPU engine need.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from .boot import Boot, Driver
from .hardware import Gpu, Hardware
from .udev import Permissions

# Stand-ins that anybody may open and that do nothing. KFD's is /dev/fuse: not one of the devices that
# DevicePolicy=closed leaves open (/dev/null would be), so a unit without the GPU's line is refused it.
KFD = (10, 229)
DRM = (1, 3)
PAGE = 4096


def write(view: Path, hardware: Hardware, boot: Boot, permissions: Permissions) -> None:
    """Make *view* anew for *boot*."""
    if view.exists():
        shutil.rmtree(view)
    view.mkdir(parents=True)
    release = boot.kernel or os.uname().release
    _text(view / "proc/osrelease", release)
    _text(view / "proc/cmdline", boot.cmdline)
    _text(view / "proc/devices", devices(boot.driver is not None))
    _copy_links(Path("/sys/class"), view / "class")
    _copy_links(Path("/sys/bus/pci/devices"), view / "pci")
    _copy_modules(view / "module")
    (view / "dev").mkdir()
    for gpu in hardware.gpus:
        _pci_device(view / "pci" / gpu.pci_address, gpu)
    if boot.driver is not None:
        shown = [gpu for gpu in hardware.gpus if gpu.gfx in boot.driver.gfx]
        _driver_up(view, shown, boot.driver, permissions)


def devices(driver: bool) -> str:
    """/proc/devices of the machine, with the classes that amdgpu registers where it is loaded.

    Of the DRM class only the name is simulated: systemd looks a class up by it.
    """
    text = Path("/proc/devices").read_text(encoding="ascii").rstrip("\n")
    lines = [line for line in text.split("\n") if line.split()[1:] not in (["kfd"], ["drm"])]
    return "\n".join([lines[0], *([f"{KFD[0]:3} kfd", "226 drm"] if driver else []), *lines[1:]])


def memory_bytes() -> int:
    """The memory of the machine, which its lab hosts show, too."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    return int(text.split("MemTotal:", 1)[1].split()[0]) * 1024


def gtt_bytes(driver: Driver) -> int:
    """Size of the GTT that the driver sets up (amdgpu_ttm_init): gttsize in MiB, else ttm's limit."""
    size = int(driver.parameters.get("gttsize", "-1"))
    if size >= 0:
        return size * 1024**2
    return int(driver.ttm_parameters["pages_limit"]) * PAGE


def _driver_up(view: Path, gpus: list[Gpu], driver: Driver, permissions: Permissions) -> None:
    _module(view / "module/amdgpu", driver.srcversion, driver.version, driver.parameters)
    _module(view / "module" / driver.ttm_module, driver.srcversion, driver.version, driver.ttm_parameters)
    nodes = view / "class/kfd/kfd/topology/nodes"
    _text(nodes / "0/gpu_id", "0")
    _text(nodes / "0/properties", f"cpu_cores_count {os.cpu_count()}\nsimd_count 0\ngfx_target_version 0")
    _text(view / "class/kfd/kfd/dev", f"{KFD[0]}:{KFD[1]}")
    _node(view / "dev/kfd", KFD, *permissions.of("kfd", "kfd"))
    for number, gpu in enumerate(gpus):
        _text(nodes / f"{number + 1}/gpu_id", str(50000 + number))
        _text(nodes / f"{number + 1}/name", "ip discovery")
        _text(nodes / f"{number + 1}/properties", kfd_properties(gpu, number, driver.cwsr))
        for node in (f"card{number}", f"renderD{128 + number}"):
            _drm_device(view / "class/drm" / node / "device", gpu, driver)
            _node(view / "dev/dri" / node, DRM, *permissions.of("drm", node))


def kfd_properties(gpu: Gpu, number: int, cwsr: str) -> str:
    """The ``properties`` file of a GPU node under a driver that exports *cwsr* (none, old, fixed)."""
    values: dict[str, int] = {
        "cpu_cores_count": 0,
        "simd_count": gpu.simd_count,
        "mem_banks_count": 1,
        "array_count": gpu.array_count,
        "simd_arrays_per_engine": gpu.simd_arrays_per_engine,
        "cu_per_simd_array": gpu.simd_count // gpu.simd_per_cu // gpu.array_count,
        "simd_per_cu": gpu.simd_per_cu,
        "gfx_target_version": gpu.gfx_target_version,
        "vendor_id": 4098,
        "device_id": gpu.pci_device,
        "drm_render_minor": 128 + number,
        "num_xcc": gpu.num_xcc,
    }
    if cwsr != "none":
        values["cwsr_size"], values["ctl_stack_size"] = gpu.cwsr_sizes(old=cwsr == "old")
    return "\n".join(f"{name} {value}" for name, value in values.items())


def _drm_device(device: Path, gpu: Gpu, driver: Driver) -> None:
    _text(device / "vendor", "0x1002")
    _text(device / "device", f"{gpu.pci_device:#06x}")
    _text(device / "mem_info_vram_total", str(gpu.vram))
    _text(device / "mem_info_gtt_total", str(gtt_bytes(driver)))
    firmware = gpu.mes_firmware if driver.mes_firmware is None else driver.mes_firmware
    _text(device / "fw_version/mes_fw_version", f"{firmware:#010x}")
    if not gpu.apu:
        _text(device / "board_info", "type : cem")
    _text(
        device / "uevent", f"DRIVER=amdgpu\nPCI_ID=1002:{gpu.pci_device:04X}\nPCI_SLOT_NAME={gpu.pci_address}"
    )


def _pci_device(device: Path, gpu: Gpu) -> None:
    kind = 0x038000 if gpu.apu else 0x030000
    _text(device / "vendor", "0x1002")
    _text(device / "device", f"{gpu.pci_device:#06x}")
    _text(device / "class", f"{kind:#08x}")
    _text(device / "revision", f"{gpu.revision:#04x}")
    _text(device / "subsystem_vendor", "0x1002")
    _text(device / "subsystem_device", "0x0000")
    _text(device / "modalias", f"pci:v00001002d{gpu.pci_device:08X}sv00001002sd00000000bc03sc80i00")
    _text(device / "irq", "0")
    _text(device / "resource", "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 7))
    header = bytearray(64)
    header[0:4] = (0x1002).to_bytes(2, "little") + gpu.pci_device.to_bytes(2, "little")
    header[8:12] = bytes([gpu.revision]) + kind.to_bytes(3, "little")
    (device / "config").write_bytes(header)


def _module(folder: Path, srcversion: str, version: str | None, parameters: Mapping[str, str]) -> None:
    _text(folder / "srcversion", srcversion)
    _text(folder / "initstate", "live")
    if version is not None:
        _text(folder / "version", version)
    for name, value in parameters.items():
        _text(folder / "parameters" / name, value)


def _node(path: Path, numbers: tuple[int, int], gid: int, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, mode | stat.S_IFCHR, os.makedev(*numbers))
    os.chown(path, 0, gid)
    path.chmod(mode)


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def _copy_links(source: Path, target: Path) -> None:
    """Copy a sysfs folder of links (and folders of links); the links point outside and stay valid."""
    target.mkdir(parents=True)
    if not source.is_dir():
        return
    for entry in source.iterdir():
        copy = target / entry.name
        if entry.is_symlink():
            copy.symlink_to(entry.readlink())
        elif entry.is_dir():
            _copy_links(entry, copy)


def _copy_modules(target: Path) -> None:
    """The machine's own modules, by name and parameter values, for whatever lists /sys/module."""
    target.mkdir(parents=True)
    for module in Path("/sys/module").iterdir():
        (target / module.name).mkdir()
        for parameter in module.glob("parameters/*"):
            if not parameter.stat().st_mode & stat.S_IRUSR:
                continue
            try:
                value = parameter.read_text(encoding="utf-8", errors="replace")
            except OSError:  # some parameters refuse to be read
                continue
            _text(target / module.name / "parameters" / parameter.name, value.rstrip("\n"))
