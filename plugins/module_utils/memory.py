# SPDX-License-Identifier: Apache-2.0
"""How much system memory an APU may use as GPU memory (GTT), and what else says so.

Since Linux 6.x ``ttm.pages_limit`` alone sets the limit (``amdgpu.gttsize`` is deprecated);
the DKMS driver brings a ttm of its own, so there the parameter is ``amdttm.pages_limit``.
Pages are 4 KiB. Modprobe options reach the module through the initramfs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from . import paths
from .host import Host
from .modprobe_conf import FOLDERS, read_command_line

PAGE_BYTES = 4096
GIB = 1024**3
PAGES_PER_GIB = GIB // PAGE_BYTES
KEEP_GIB = 8  # what the operating system and lemond keep at least
KEEP_SHARE = 10  # … or one part in ten of the memory, if that is more

_LIMITS = ("ttm.pages_limit", "amdttm.pages_limit", "amdgpu.gttsize")


def mem_total_kib(host: Host) -> int:
    """MemTotal of /proc/meminfo in KiB; 0 where it cannot be read."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", host.read("/proc/meminfo") or "", re.MULTILINE)
    return int(match.group(1)) if match else 0


def ttm_module(origin: str) -> str:
    """Name of the module that holds the limit: the DKMS driver has its own ttm."""
    return "amdttm" if origin == "dkms" else "ttm"


def auto_pages(total_kib: int) -> int:
    """Pages for RAM − max(8 GiB, 10 %), in whole GiB; 0 where nothing would be left."""
    total = total_kib * 1024
    limit = total - max(KEEP_GIB * GIB, total // KEEP_SHARE)
    return max(limit // GIB, 0) * PAGES_PER_GIB


def wanted_pages(request: str, *, apu: bool, total_kib: int, configured: int | None) -> int | None:
    """The GTT limit in pages, or None to leave it alone.

    ``request`` is ``auto`` or a number of GiB. Another kernel sees a few MiB more or less of the
    same memory, so a value of ours that is at most 1 GiB off the computed one stays: otherwise
    a host whose RAM sits at a rounding edge would change after every kernel.
    Raises ValueError for a request that is neither, or that does not leave 1 GiB to the system.
    """
    if request != "auto":
        if not re.fullmatch(r"[1-9]\d*", request):
            raise ValueError(f"gpu_memory_gtt_gib: {request!r} is neither auto nor a number of GiB")
        pages = int(request) * PAGES_PER_GIB
        if total_kib and pages * PAGE_BYTES > total_kib * 1024 - GIB:
            total = total_kib / 1024**2
            raise ValueError(
                f"gpu_memory_gtt_gib: {request} GiB of {total:.1f} GiB leave the system no memory"
            )
        return pages
    if not apu:
        return None
    pages = auto_pages(total_kib)
    if configured and abs(configured - pages) <= PAGES_PER_GIB:
        return configured
    return pages or None


def options_line(module: str, pages: int) -> str:
    """The modprobe options that set the limit and let the pool hold as much."""
    return f"options {module} pages_limit={pages} page_pool_size={pages}"


def modprobe_file(module: str, pages: int) -> str:
    """Content of :data:`paths.GTT_MODPROBE`."""
    gib = pages / PAGES_PER_GIB
    return (
        "# Managed by lemonade-deploy (role gpu_memory): system memory the GPU may use (GTT).\n"
        f"# {pages} pages of 4 KiB = {gib:g} GiB. Takes effect with the next initramfs and boot.\n"
        f"{options_line(module, pages)}\n"
    )


def configured_pages(host: Host) -> int | None:
    """pages_limit in the kit's own modprobe file, whichever module it names."""
    match = re.search(
        r"^options\s+\w+\s.*\bpages_limit=(\d+)", host.read(paths.GTT_MODPROBE) or "", re.MULTILINE
    )
    return int(match.group(1)) if match else None


def active_pages(host: Host, module: str) -> int | None:
    """pages_limit of the loaded *module*, or None where it is not loaded."""
    text = host.value(f"/sys/module/{module}/parameters/pages_limit")
    return int(text) if text is not None and text.isdigit() else None


class Rival(NamedTuple):
    """Another place that sets a limit: ``where`` a file or the command line, ``setting`` as found."""

    where: str
    setting: str


def rivals(host: Host, module: str, pages: int | None) -> list[Rival]:
    """Places other than ours that set another limit for *module* (empty: nothing contradicts)."""
    found = []
    own = paths.GTT_MODPROBE
    seen: set[str] = set()
    for folder in FOLDERS:
        for name in host.listdir(folder):
            path = f"{folder}/{name}"
            if not name.endswith(".conf") or name in seen or path == own:
                continue
            seen.add(name)
            found += [Rival(path, text) for text in _file_settings(host.read(path) or "")]
    words = read_command_line(host).split()
    found += [Rival("kernel command line", word) for word in words if word.split("=")[0] in _LIMITS]
    agreeing = f"{module}.pages_limit={pages}"
    return [rival for rival in found if rival.setting != agreeing]


def outranked(host: Host, module: str, pages: int) -> bool:
    """Whether another place wins over the kit's file, so that no boot would bring the limit into effect.

    modprobe joins the options of all files in the order of their names, and puts those of the command
    line behind; the module takes the last.
    """
    same = f"{module}.pages_limit="
    own = paths.GTT_MODPROBE.rpartition("/")[2]
    found = [rival for rival in rivals(host, module, pages) if rival.setting.startswith(same)]
    return any(not rival.where.startswith("/") or rival.where.rpartition("/")[2] > own for rival in found)


def _file_settings(text: str) -> list[str]:
    """``module.parameter=value`` of each limit that a modprobe.d file sets."""
    settings = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = line.split()
        if len(words) < 3 or words[0] != "options":
            continue
        named = (f"{words[1]}.{word}" for word in words[2:])
        settings += [setting for setting in named if setting.split("=")[0] in _LIMITS]
    return settings


def rival_finding(rival: Rival) -> dict[str, str]:
    """*rival* in the shape of a doctor finding."""
    return {
        "id": "gtt-rival",
        "severity": "warning",
        "found": f"{rival.where} sets {rival.setting}",
        "remedy": f"take it out of {rival.where}, so that the limit of gpu_memory_gtt_gib counts",
        "source": "kernel: Documentation/admin-guide/kernel-parameters (ttm.pages_limit)",
    }
