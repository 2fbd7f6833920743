# SPDX-License-Identifier: Apache-2.0
"""Derives, at each boot, what the real machine would show from what is on the host's disk.

GRUB picks kernel and command line; udev in the initramfs loads amdgpu if the archive has it and
nothing there forbids it, with the options *in the archive*; else the root file system's modules
and options decide. Everything else (KFD, sysfs, /dev) follows from the module that won.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import initrd, modprobe, udev, view
from .boot import Boot, Driver
from .grubmenu import Chosen, Grub, Stuck
from .hardware import MACHINES, Hardware
from .host import Host
from .kmod import read_modinfo, unpack
from .profiles import find
from .state import read_json, write_json

PANIC_TRIES = 5
MES_FILE = "gc_11_5_1_mes_2.bin"
FIRMWARE_FOLDERS = ("lib/firmware/updates/amdgpu", "lib/firmware/amdgpu")
# A simulated kernel that does what its image says (a text anywhere in it): stops before PID 1, or
# comes up without a driver for the NIC.
PANICS, NO_NETWORK = b"lab: panics", b"lab: no network"
AMDGPU_DEFAULTS = {"cwsr_enable": "1", "gttsize": "-1", "noretry": "-1"}


class Panicked(Exception):
    """The kernel stops before any root file system; ``seconds`` until it resets itself, 0 = never."""

    def __init__(self, text: str, seconds: int) -> None:
        self.seconds = seconds
        super().__init__(text)


def boot(host: Host) -> Boot:
    """Decide a boot of *host*, write its view and keep the decision; Stuck when it never comes up."""
    hardware = MACHINES[find(host.record.profile).hardware]
    try:
        decided = power_up(host.root, hardware)
    except Stuck as stuck:
        write_json(host.folder / "boot.json", asdict(Boot("", "", "", None, f"stuck: {stuck}")))
        raise
    view.write(host.view, hardware, decided, udev.permissions(host.root))
    write_json(host.folder / "boot.json", asdict(decided))
    return decided


def last_boot(host: Host) -> Boot | None:
    """The last boot's decision, None before the first."""
    raw: dict[str, Any] | None = read_json(host.folder / "boot.json")
    if raw is None:
        return None
    driver = raw.pop("driver")
    raw["resets"] = tuple(raw.get("resets", ()))
    if driver is not None:
        driver["gfx"] = tuple(driver["gfx"])
    return Boot(**raw, driver=None if driver is None else Driver(**driver))


def power_up(root: Path, hardware: Hardware) -> Boot:
    """From reset to a running kernel; panics with ``panic=N`` go round again. Raises Stuck."""
    resets: list[str] = []
    for _try in range(PANIC_TRIES):
        grub = Grub(root)
        grub.read()
        chosen = grub.choose()
        try:
            return replace(_start(root, hardware, chosen), resets=tuple(resets))
        except Panicked as panic:
            if panic.seconds == 0:
                raise Stuck(f"{chosen.path}: {panic}") from None
            resets.append(f"{chosen.path}: {panic}")
    raise Stuck(f"resets for ever: {resets[-1]}")


def _start(root: Path, hardware: Hardware, chosen: Chosen) -> Boot:
    kernel = chosen.kernel.rpartition("/vmlinuz-")[2]
    cmdline = f"BOOT_IMAGE={chosen.kernel} {chosen.arguments}".strip()
    given = re.findall(r"(?:^| )panic=(\d+)", cmdline)
    seconds = int(given[-1]) if given else 0  # the last one counts
    image = (root / chosen.kernel.rpartition(")")[2].lstrip("/")).read_bytes()
    if PANICS in image:
        raise Panicked("the kernel panics", seconds)
    try:
        archive = initrd.read(root / chosen.initrd.lstrip("/")) if chosen.initrd else {}
    except initrd.DamagedInitrd as damage:
        raise Panicked(f"no root file system ({damage})", seconds) from None
    if re.search(r"(?:^| )init=/bin/false(?: |$)", cmdline):
        raise Panicked("init ended", seconds)
    driver, reason = _load(root, hardware, kernel, cmdline, archive)
    return Boot(chosen.path, kernel, cmdline, driver, reason, network=NO_NETWORK not in image)


def _load(
    root: Path, hardware: Hardware, kernel: str, cmdline: str, archive: Mapping[str, bytes]
) -> tuple[Driver | None, str]:
    if not hardware.gpus:
        return None, "no AMD GPU on the bus"
    if re.search(r"(?:^| )nomodeset(?: |$)", cmdline):
        return None, "nomodeset on the command line: amdgpu refuses to start"
    base = f"lib/modules/{kernel}"
    reasons = []
    for stage, read, files in (
        ("initramfs", archive.get, archive),
        ("root", _disk_reader(root), modprobe.disk_config_files(root)),
    ):
        driver, reason = _try_stage(stage, base, kernel, read, modprobe.config(files, cmdline))
        if driver is not None:
            return replace(driver, mes_firmware=_mes(archive.get, _disk_reader(root))), reason
        reasons.append(f"{stage}: {reason}")
    return None, "; ".join(reasons)


def _disk_reader(root: Path) -> Callable[[str], bytes | None]:
    def read(path: str) -> bytes | None:
        file = root / path
        return file.read_bytes() if file.is_file() else None

    return read


def _try_stage(
    stage: str, base: str, kernel: str, read: Callable[[str], bytes | None], config: modprobe.Config
) -> tuple[Driver | None, str]:
    """Load amdgpu from one place as udev does there (by its alias, so blacklists count)."""
    for said in (config.blacklist, config.disabled):
        if "amdgpu" in said:
            return None, f"amdgpu is blacklisted by {said['amdgpu']}"
    index = (read(f"{base}/modules.dep") or b"").decode("utf-8", "replace")
    found = modprobe.find(index, "amdgpu", lambda path: read(f"{base}/{path}") is not None)
    if found is None:
        return None, "no amdgpu module"
    info = read_modinfo(read(f"{base}/{found.path}") or b"")
    if info.get("vermagic", "").split(" ")[0] != kernel:
        return None, f"{found.path} was built for {info.get('vermagic', '?').split(' ')[0]}"
    names = {modprobe.module_name(path) for path in found.depends}
    ttm = "amdttm" if "amdttm" in names else "ttm"
    pages = str(view.memory_bytes() // 2 // view.PAGE)  # the kernel's default: half of the memory
    dkms = found.path.startswith("updates/dkms/")
    driver = Driver(
        origin="dkms" if dkms else "in-tree",
        path=f"{base}/{found.path}",
        stage=stage,
        version=info.get("version"),
        srcversion=info.get("srcversion", ""),
        cwsr=info.get("lab_cwsr", "none"),
        gfx=tuple(word for word in info.get("lab_gfx", "").split(",") if word),
        parameters=config.parameters("amdgpu", AMDGPU_DEFAULTS),
        ttm_module=ttm,
        ttm_parameters=config.parameters(ttm, {"pages_limit": pages, "page_pool_size": pages}),
    )
    return driver, f"{driver.origin} amdgpu {info.get('version', 'of the kernel')} from the {stage}"


def _mes(*readers: Callable[[str], bytes | None]) -> int | None:
    """Version of the MES firmware that the driver finds: the archive's first, updates/ first."""
    for read in readers:
        for folder in FIRMWARE_FOLDERS:
            for suffix in ("", ".zst"):
                blob = read(f"{folder}/{MES_FILE}{suffix}")
                if blob is not None:
                    # struct common_firmware_header: ucode_version is the 32 bits at offset 16
                    return int.from_bytes(unpack(blob)[16:20], "little")
    return None
