# SPDX-License-Identifier: Apache-2.0
"""The distribution's firmware for the GPUs of a host: there before AMD's own package is taken away."""

from __future__ import annotations

from collections.abc import Sequence

from . import apt, dpkg, initramfs, pci
from .apt_plan import Candidate
from .change import Call, Change
from .distribution import Distribution, read_distribution
from .host import CommandFailed, Host
from .refusal import Refused

FOLDER = "/lib/firmware/amdgpu"
# Version of the graphics core (GC) of an ISA, which its firmware files are named after: Linux,
# drivers/gpu/drm/amd/amdkfd/kfd_device.c (kgd2kfd_probe maps one to the other) and gfx_v11_0.c,
# gfx_v12_0.c (MODULE_FIRMWARE). gfx1103 is two chips, Phoenix and Phoenix 2.
CORES = {
    "gfx1100": ("11_0_0",),
    "gfx1101": ("11_0_3",),
    "gfx1102": ("11_0_2",),
    "gfx1103": ("11_0_1", "11_0_4"),
    "gfx1150": ("11_5_0",),
    "gfx1151": ("11_5_1",),
    "gfx1152": ("11_5_2",),
    "gfx1200": ("12_0_0",),
    "gfx1201": ("12_0_1",),
}
# Without any of these the driver does not start the compute queues (gfx_v11_0_init_microcode).
PARTS = ("pfp", "me", "mec", "rlc")
_SUFFIXES = ("", ".zst", ".xz")
_PACKAGES = {"debian": "firmware-amd-graphics"}


def package(distribution: Distribution) -> str:
    """The distribution's package with amdgpu's firmware."""
    return _PACKAGES.get(distribution.base, "linux-firmware")


def _there(host: Host, folders: Sequence[str], name: str) -> bool:
    return any(host.exists(f"{folder}/{name}{suffix}") for folder in folders for suffix in _SUFFIXES)


def missing(host: Host, kernel: str = "") -> list[str]:
    """Firmware files that a GPU of the host needs and the distribution's folders lack; by name.

    The kernel looks in ``/lib/firmware/<release>`` before ``/lib/firmware``; the shadow in ``updates``
    is what goes, so it does not count.
    """
    folders = [FOLDER, *([f"/lib/firmware/{kernel}/amdgpu"] if kernel else [])]
    lacking = []
    for gpu in pci.read_gpus(host):
        cores = CORES.get(gpu.known.gfx, ()) if gpu.known else ()
        by_core = [[f"gc_{core}_{part}.bin" for part in PARTS] for core in cores]
        absent = [[name for name in names if not _there(host, folders, name)] for names in by_core]
        if absent and all(absent):
            lacking += absent[0]
    return sorted(set(lacking))


def plan(host: Host, layer: str, kernel: str) -> list[Change]:
    """Install what is missing; empty where nothing is. Raises Refused where apt has no better package."""
    files = missing(host, kernel)
    if not files:
        return []
    name = package(read_distribution(host))
    found = f"{', '.join(files)} are not in {FOLDER}: without AMD's package the GPU would have no firmware"
    by_hand = f"install {name} with these files, then run again; nothing was changed"
    if not host.is_dir("/etc/apt"):
        raise Refused(found, by_hand)
    candidate = _candidate(host, name)
    present = dpkg.packages(host).get(name)
    version = present.version if present is not None and present.installed else ""
    if candidate is None or not candidate.uri or candidate.version == version:
        has = f"{name} {version} is installed and lacks them" if version else f"apt has no {name}"
        raise Refused(f"{found}; {has}", by_hand)
    step = Call(lambda host: install(host, name, kernel))
    action = "upgrade" if version else "install"
    return [Change(layer, f"package {name}", action, candidate.version, operations=(step,))]


def _candidate(host: Host, name: str) -> Candidate | None:
    with apt.PrivateApt(host) as private:
        found = private.candidate(name)
        if found is None or not found.uri:  # the lists may be old or empty
            private.update()
            found = private.candidate(name)
        return found


def install(host: Host, name: str, kernel: str) -> None:
    """Install the firmware package and demand the files. Raises Refused: nothing was purged yet."""
    trouble = ""
    apt.update(host)  # what is missing then shows in the installation's own message
    with initramfs.held(host) as path:
        try:
            apt.apt_get(host, "install", name, path=path)
        except CommandFailed as error:
            trouble = f": {error}"  # a half-configured driver makes apt fail; the files are what counts
    left = missing(host, kernel)
    if left:
        raise Refused(
            f"{name} did not bring {', '.join(left)}{trouble}",
            f"install {name} with these files by hand, then run again; AMD's driver was not touched",
        )
