# SPDX-License-Identifier: Apache-2.0
"""Binds what a box with a Radeon 8060S (gfx1151) shows over /sys, by the kernel that really runs.

On the kernel that the disk image came with KFD exports no CWSR numbers; on any other it does.
The GTT limit is the one that modprobe.d sets, as ttm would take it at this boot.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

HERE = Path("/usr/lib/lemonade-lab")
VIEW = Path("/run/lemonade-lab")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="ascii")


def copy_links(source: Path, target: Path) -> None:
    """Links and folders of links, as they are; files like gpio's ``export`` are left out."""
    target.mkdir()
    for entry in source.iterdir():
        if entry.is_symlink():
            (target / entry.name).symlink_to(entry.readlink())
        elif entry.is_dir():
            copy_links(entry, target / entry.name)


def copy_modules(target: Path) -> None:
    """What lsmod and modprobe ask of the modules that are loaded now."""
    for module in Path("/sys/module").iterdir():
        if module.is_file():  # how the kernel's modules are packed
            put(target / module.name, module.read_text("ascii").strip())
            continue
        (target / module.name / "holders").mkdir(parents=True)
        for name in ("initstate", "coresize", "refcnt", "srcversion"):
            if (module / name).exists():
                put(target / module.name / name, (module / name).read_text("ascii").strip())


def bind(source: Path, target: str) -> None:
    subprocess.run(["mount", "--bind", source, target], check=True)


def module_field(release: str, field: str) -> str:
    done = subprocess.run(
        ["modinfo", "-k", release, "-F", field, "amdgpu"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def pages_limit() -> str:
    pages = os.sysconf("SC_PHYS_PAGES") // 2
    for path in sorted(Path("/etc/modprobe.d").glob("*.conf")):
        found = re.findall(r"^options\s+ttm\s.*\bpages_limit=(\d+)", path.read_text("utf-8"), re.MULTILINE)
        pages = int(found[-1]) if found else pages
    return str(pages)


def main() -> None:
    gpu = json.loads((HERE / "gpu.json").read_text("utf-8"))
    release = os.uname().release
    first = release == (HERE / "first-kernel").read_text("ascii").strip()
    VIEW.mkdir()
    copy_links(Path("/sys/class"), VIEW / "class")
    copy_links(Path("/sys/bus/pci/devices"), VIEW / "pci")
    device = VIEW / "pci" / gpu["pci"]
    for name, text in gpu["device"].items():
        put(device / name, text)
    copy_modules(VIEW / "module")
    srcversion = module_field(release, "srcversion")
    if srcversion:  # a kernel without the (stub) module has no driver
        (device / "driver").symlink_to("../../../../bus/pci/drivers/amdgpu")
        put(VIEW / "module/amdgpu/srcversion", srcversion)
        put(VIEW / "module/ttm/parameters/pages_limit", pages_limit())
        nodes = VIEW / "class/kfd/kfd/topology/nodes"
        put(nodes / "0/properties", "cpu_cores_count 2\nsimd_count 0\ngfx_target_version 0")
        put(nodes / "1/gpu_id", "50000")
        put(nodes / "1/properties", gpu["properties_without" if first else "properties"])
        for name, text in gpu["drm"].items():
            put(VIEW / "class/drm/card0/device" / name, text)
    for name, target in (("class", "/sys/class"), ("pci", "/sys/bus/pci/devices"), ("module", "/sys/module")):
        bind(VIEW / name, target)


main()
