# SPDX-License-Identifier: Apache-2.0
"""What AMD's driver packages are, and what they left on a host."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import amdgpu_module, dkms, dpkg, modprobe_conf, paths
from .amdgpu_module import Loaded
from .dpkg import Package
from .host import Host
from .modprobe_conf import without_blacklist

DKMS_PACKAGE = "amdgpu-dkms"
FIRMWARE_PACKAGE = "amdgpu-dkms-firmware"

# What the kit purges itself …
_PURGED = re.compile(r"amdgpu-dkms(-.*)?|rock-dkms(-firmware)?")
# … and what may go with it because it depends on it. Anything else (libdrm-amdgpu, mesa, rocm) stays.
_MAY_GO = re.compile(r"amdgpu-dkms(-.*)?|rock-dkms(-firmware)?|rocm-dkms|amdgpu")

# AMD's postinst blacklists amdgpu while DKMS builds and stops at the first error: a failed build
# leaves the line behind, and the next boot comes up without a GPU.
BLACKLIST = modprobe_conf.AMD_LEFTOVER
HOOK = "/usr/share/initramfs-tools/hooks/01-amdgpu_firmware"
FIRMWARE = "/lib/firmware/updates/amdgpu"  # outranks /lib/firmware/amdgpu
DKMS_TREE = f"{dkms.TREE}/{dkms.MODULE}"
ORIGINALS = f"{DKMS_TREE}/original_module"  # the kernels' own modules, put aside by DKMS
_SIBLINGS = re.compile(r"(amdgpu|amdttm|amdkcl|amd-sched|amdxcp|amddrm_\w+)\.ko(\.(xz|zst|gz))?")


def may_go(package: str) -> bool:
    """Whether a purge of the driver may take *package* along."""
    return bool(_MAY_GO.fullmatch(package))


@dataclass(frozen=True)
class DriverState:
    """What the driver's plan is made from.

    ``packages``: AMD's driver packages that dpkg knows. ``unfinished``: names of the others that
    dpkg left half-way; ``interrupted``: dpkg itself was killed. ``modules``: files of AMD's DKMS
    driver below /lib/modules; ``trees``: versions in the DKMS tree. ``blacklist``: the file's text
    where it holds the line.
    """

    packages: dict[str, Package] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()
    interrupted: bool = False
    blacklist: str | None = None
    hook: bool = False
    firmware: bool = False
    modules: tuple[str, ...] = ()
    trees: tuple[dkms.Version, ...] = ()
    pin: str | None = None
    has_apt: bool = True
    loaded: Loaded = field(default_factory=lambda: Loaded(amdgpu_module.NONE))

    @property
    def half_way(self) -> bool:
        """Whether anything of dpkg or of the DKMS tree needs repair before packages can change."""
        packages = any(package.unfinished for package in self.packages.values())
        stale = any(tree.broken for tree in self.trees)
        return packages or bool(self.unfinished) or self.interrupted or stale

    @property
    def residue(self) -> bool:
        """Whether anything of AMD's driver is left on the disk."""
        return bool(
            self.packages or self.blacklist or self.hook or self.firmware or self.modules or self.trees
        )


def lacks_own_module(host: Host, release: str) -> bool:
    """Whether an installed kernel would have no amdgpu once DKMS's is gone (one put aside comes back)."""
    base = f"/lib/modules/{release}"
    if not host.is_dir(base):
        return False
    own = host.glob(f"{base}/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko*")
    return not own and not host.glob(f"{ORIGINALS}/{release}/*/amdgpu.ko*")


def driver_modules(host: Host) -> list[str]:
    """Files of AMD's DKMS driver in any kernel's updates/dkms; those of other drivers are not listed."""
    found = host.glob("/lib/modules/*/updates/dkms/*.ko*")
    return [path for path in found if _SIBLINGS.fullmatch(path.rsplit("/", 1)[1])]


def left_firmware(host: Host) -> list[str]:
    """Files of the firmware shadow that AMD's packages own, and no other: they may go.

    What no package owns was put there by somebody (a fixed MES firmware, for example) and stays;
    the finding firmware-shadow tells of it.
    """
    names = host.listdir(FIRMWARE)
    owned: set[str] = set()
    foreign: set[str] = set()
    for listing in host.glob(f"{dpkg.INFO}/*.list") if names else []:
        package = listing.rsplit("/", 1)[1].removesuffix(".list").partition(":")[0]
        text = host.read(listing) or ""
        if f"{FIRMWARE}/" in text:
            # /lib is /usr/lib: a package may name either.
            listed = {line.rsplit("/", 1)[1] for line in text.splitlines() if f"{FIRMWARE}/" in line}
            if _PURGED.fullmatch(package):
                owned |= listed
            else:
                foreign |= listed
    return [f"{FIRMWARE}/{name}" for name in names if name in owned - foreign]


def read(host: Host) -> DriverState:
    """Read the state."""
    installed = dpkg.packages(host)
    own = {name: item for name, item in installed.items() if _PURGED.fullmatch(name) and item.known}
    others = tuple(item.name for item in dpkg.unfinished(installed) if item.name not in own)
    blacklist = host.text(BLACKLIST)
    if blacklist is not None and without_blacklist(blacklist) == blacklist:
        blacklist = None
    return DriverState(
        packages=own,
        unfinished=others,
        interrupted=dpkg.interrupted(host),
        blacklist=blacklist,
        hook=host.exists(HOOK),
        firmware=bool(left_firmware(host)),
        modules=tuple(driver_modules(host)),
        trees=tuple(dkms.read_versions(host)),
        pin=host.read(paths.APT_PIN),
        has_apt=host.is_dir("/etc/apt"),
        loaded=amdgpu_module.read_loaded(host),
    )
