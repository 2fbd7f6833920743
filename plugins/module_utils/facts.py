# SPDX-License-Identifier: Apache-2.0
"""Everything preflight and doctor know of a host, gathered once, through files where there is one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from . import amdgpu_module as kernel_module
from . import (
    apt_sources,
    boot_facts,
    cmdline_traps,
    disk,
    dkms,
    dpkg,
    environment,
    firmware_facts,
    kfd,
    memory,
    modprobe_conf,
    paths,
)
from . import secure_boot as secure_boot_state
from .apt_formats import Entry
from .boot_facts import BootLoader
from .distribution import Distribution, read_distribution
from .gpus import Gpu, supported, survey
from .host import Host
from .lemond_overrides import Override, overrides
from .service_user import Access, read_access

# Modules that only some hosts need are imported where they are: imports are what most of
# preflight's time goes into (benchmark facts).
if TYPE_CHECKING:
    from . import apt_keys, apt_pins

# AMD's key for repo.radeon.com.
KEY_FINGERPRINT = "CA8BB4727A47B4D09B4EE8969386B48A1A693C5C"
DKMS_PACKAGES = ("amdgpu-dkms", "rock-dkms")


class Apt(NamedTuple):
    """AMD's apt sources, the keys of the active ones, and the pins that concern them.

    ``pins``: those for AMD's packages or repositories; where none of its sources is there nobody looks.
    """

    entries: tuple[Entry, ...] = ()
    keys: tuple[apt_keys.KeyState, ...] = ()
    repository_pin: apt_pins.Pin | None = None
    malformed_pins: tuple[apt_pins.Pin, ...] = ()
    pins: tuple[apt_pins.Pin, ...] = ()

    @property
    def drivers(self) -> list[Entry]:
        """Active entries of the driver repository."""
        return apt_sources.active(entry for entry in self.entries if apt_sources.is_driver(entry))


class Dpkg(NamedTuple):
    """The packages of interest that dpkg knows, and what it left half-way."""

    packages: dict[str, dpkg.Package]
    unfinished: tuple[dpkg.Package, ...] = ()
    interrupted: bool = False

    def version(self, name: str) -> str | None:
        """Version of an installed package, or None."""
        package = self.packages.get(name)
        return package.version if package is not None and package.installed else None


class Facts(NamedTuple):
    """One host. Sizes are bytes unless the name says otherwise.

    ``header_kernels``: releases whose headers are installed, so that DKMS would build for them.
    """

    distribution: Distribution
    kernel: str
    gpus: tuple[Gpu, ...]
    stray_nodes: tuple[kfd.Node, ...]
    loaded: kernel_module.Loaded
    on_disk: kernel_module.OnDisk
    disk_srcversion: str | None
    due: tuple[str, ...]
    dkms: tuple[dkms.Version, ...]
    dpkg: Dpkg
    apt: Apt
    blacklists: tuple[modprobe_conf.Blacklisted, ...]
    traps: tuple[cmdline_traps.Trap, ...]
    options: tuple[modprobe_conf.Option, ...]
    secure_boot: bool
    dkms_signer: str | None
    access: Access
    memory_kib: int
    gtt_pages: int | None
    overrides: tuple[Override, ...]
    header_kernels: tuple[str, ...]
    hsa_overrides: tuple[environment.Stray, ...]
    firmware_shadow: tuple[str, ...]
    boot_loader: BootLoader
    bundle_free: int
    boot_free: int

    @property
    def supported(self) -> list[Gpu]:
        """GPUs that a bundle is published for, the serving one first."""
        return supported(self.gpus)

    @property
    def dkms_installed(self) -> bool:
        """Whether a package of AMD's DKMS driver is installed."""
        return any(self.dpkg.version(name) is not None for name in DKMS_PACKAGES)

    @property
    def module_changed(self) -> bool:
        """Whether the module on disk is another one than the loaded: a boot is due."""
        both = (self.loaded.srcversion, self.disk_srcversion)
        return None not in both and both[0] != both[1]

    def public(self) -> dict[str, Any]:
        """The facts for JSON (:mod:`.facts_public`)."""
        from .facts_public import public

        return public(self)


def _read_apt(host: Host, fingerprint: str, now: float) -> Apt:
    entries = [e for e in apt_sources.entries(apt_sources.read_sources(host)) if apt_sources.is_amd(e)]
    if not entries and not host.exists(paths.APT_PIN):
        return Apt()
    from . import apt_keys, apt_pins

    keys: dict[str, apt_keys.KeyState] = {}
    # The driver's first: where two share a key, its fingerprint is the one that is asked for.
    for entry in sorted(apt_sources.active(entries), key=lambda e: not apt_sources.is_driver(e)):
        wanted = fingerprint if apt_sources.is_driver(entry) else apt_keys.ANY
        if wanted == apt_keys.ANY and not entry.signed_by:
            continue  # one of all the keys that apt trusts
        state = apt_keys.entry_key(host, entry, wanted, now)
        keys.setdefault(state.path, state)
    pins = apt_pins.read_pins(host)
    return Apt(
        tuple(entries),
        tuple(keys.values()),
        apt_pins.repository_pin(pins),
        tuple(apt_pins.malformed(pins)),
        tuple(pin for pin in pins if apt_pins.concerns_amd(pin)),
    )


def _of_interest(name: str) -> bool:
    return name.startswith(("amdgpu-", "rock-dkms", "rocm-dkms", "lemonade-server", "linux-firmware"))


def _read_dpkg(host: Host) -> Dpkg:
    packages = dpkg.packages(host, only=_of_interest)
    return Dpkg(
        {name: packages[name] for name in sorted(packages) if _of_interest(name)},
        tuple(dpkg.unfinished(packages)),
        dpkg.interrupted(host),
    )


def _dkms_signer(host: Host, on_disk: kernel_module.OnDisk, secure: bool) -> str | None:
    # Only asked where it matters: without Secure Boot nobody looks at signatures.
    if not secure or on_disk.origin != kernel_module.DKMS or on_disk.path is None:
        return None
    return secure_boot_state.module_signer(host, on_disk.path)


def read_facts(
    host: Host,
    *,
    fingerprint: str = KEY_FINGERPRINT,
    service_user: str = "lemonade",
    now: float | None = None,
) -> Facts:
    """Look at the whole host; changes nothing. *now* is seconds since 1970 (default: the clock)."""
    kernel = host.running_kernel()
    loaded = kernel_module.read_loaded(host)
    on_disk = kernel_module.on_disk(host, kernel)
    gpus, stray = survey(host, loaded.origin)
    secure = secure_boot_state.enabled(host)
    known = loaded.srcversion is not None and on_disk.origin != kernel_module.NONE
    return Facts(
        distribution=read_distribution(host),
        kernel=kernel,
        gpus=tuple(gpus),
        stray_nodes=tuple(stray),
        loaded=loaded,
        on_disk=on_disk,
        disk_srcversion=kernel_module.srcversion(host, kernel) if known else None,
        due=tuple(_due_reasons(host)),
        dkms=tuple(dkms.read_versions(host)),
        dpkg=_read_dpkg(host),
        apt=_read_apt(host, fingerprint, time.time() if now is None else now),
        blacklists=tuple(modprobe_conf.blacklists(host)),
        traps=tuple(cmdline_traps.read_traps(host)),
        options=tuple(modprobe_conf.options(host)),
        secure_boot=secure,
        dkms_signer=_dkms_signer(host, on_disk, secure),
        access=read_access(host, service_user),
        memory_kib=memory.mem_total_kib(host),
        gtt_pages=memory.configured_pages(host),
        overrides=tuple(overrides(host)),
        header_kernels=tuple(path.split("/")[3] for path in host.glob("/lib/modules/*/build")),
        hsa_overrides=tuple(environment.hsa_overrides(host)),
        firmware_shadow=firmware_facts.shadowing(host),
        boot_loader=boot_facts.read(host),
        bundle_free=disk.free_bytes(host, paths.BUNDLE_ROOT),
        boot_free=disk.free_bytes(host, "/boot"),
    )


def _due_reasons(host: Host) -> list[str]:
    """What the marker of the role activate says is still to take effect."""
    if not host.exists(paths.ACTIVATION_DUE):
        return []
    from . import activation

    return activation.read_due(host)
