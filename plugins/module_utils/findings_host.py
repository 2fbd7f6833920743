# SPDX-License-Identifier: Apache-2.0
"""Findings about packages, apt, DKMS, the disk and the service."""

from __future__ import annotations

from collections.abc import Iterator

from . import amdgpu_module as kernel_module
from . import apt_sources, dpkg, firmware_facts, paths, secure_boot, service_user
from .apt_formats import Entry
from .decision import Wishes
from .disk import BOOT_MIN_MIB, GIB, MIB
from .driver_choice import DKMS, choose_driver
from .driver_releases import known_form, satisfies
from .facts import Facts
from .finding_kinds import PLAY
from .findings import ERROR, INFO, WARNING, Finding, finding
from .load_blockers import load_blockers


def _place(entry: Entry) -> str:
    return f"{entry.path} line {entry.line}: {entry.text}"


# What an old repository means by (AMD's driver is asked for, AMD's driver is decided): (severity, remedy).
_OUTDATED: dict[tuple[bool, bool], tuple[str, str | None]] = {
    (True, True): (ERROR, f"{PLAY}: it switches the source."),
    (False, True): (
        WARNING,
        "AMD's driver works and stays as it is; set amdgpu_driver_policy dkms to switch to the wanted one.",
    ),
    (False, False): (INFO, None),  # the kernel's own driver: nothing comes from there
}


def _repository(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    drivers = facts.apt.drivers
    suite = apt_sources.expected_suite(facts.distribution.base, facts.distribution.version)
    driver, _why = choose_driver(facts, wishes)
    # The driver layer refuses them where it would install from there; else they only wait.
    unclear = ERROR if driver.policy == DKMS else WARNING
    for entry in drivers:
        version = apt_sources.version(entry) or ""
        wanted = wishes.repository_version
        if known_form(wanted) and not satisfies(version, wanted, wishes.repository_exact):
            severity, remedy = _OUTDATED[wishes.policy == DKMS, driver.policy == DKMS]
            found = f"{_place(entry)} ({version}, wanted {wanted})"
            yield finding("amdgpu-repo-outdated", found, entry.path, severity=severity, remedy=remedy)
        if suite is not None and entry.suite != suite:
            found = f"{_place(entry)} (suite {entry.suite}; {facts.distribution.name} needs {suite})"
            remedy = f"Change {entry.suite} to {suite} in {entry.path} line {entry.line}."
            yield finding("amdgpu-repo-suite", found, entry.path, severity=unclear, remedy=remedy)
    twice = apt_sources.duplicates(drivers)
    if twice:
        found = "; ".join(_place(entry) for entry in twice)
        remedy = f"Keep one: remove {twice[-1].path} line {twice[-1].line}, for example."
        yield finding("amdgpu-repo-duplicate", found, apt_sources.PARTS, severity=unclear, remedy=remedy)


def _keys_and_pins(facts: Facts) -> Iterator[Finding]:
    for key in facts.apt.keys:
        if key.why:
            severity = WARNING if key.usable else ERROR
            yield finding("apt-key-unusable", f"{key.path}: {key.why}", key.path, severity=severity)
    if facts.apt.drivers and facts.apt.repository_pin is None:
        entry = facts.apt.drivers[0]
        odd = [f"; {pin.path} line {pin.line} does nothing" for pin in facts.apt.malformed_pins]
        found = f"{_place(entry)} is active, and no pin prefers repo.radeon.com{''.join(odd)}"
        yield finding("apt-pin-missing", found, "/etc/apt/preferences.d")


def _packages(facts: Facts) -> Iterator[Finding]:
    for package in facts.dpkg.unfinished:
        state = "to be reinstalled" if package.reinstall else package.state
        found = f"{package.name} {package.version} is {state}"
        yield finding("dpkg-unfinished", found, dpkg.STATUS)
    if facts.dpkg.interrupted:
        yield finding(
            "dpkg-unfinished", f"dpkg was interrupted: its journal is left in {dpkg.UPDATES}", dpkg.UPDATES
        )


def _dkms(facts: Facts) -> Iterator[Finding]:
    for version in facts.dkms:
        if version.failed_log is not None:
            target = f" for kernel {version.failed_kernel}" if version.failed_kernel else ""
            why = f": {version.failed_why}" if version.failed_why else ""
            found = f"amdgpu {version.version} was not built{target}, see {version.failed_log}{why}"
            yield finding("dkms-build-failed", found, version.failed_log)
        if version.broken:
            yield finding("dkms-stale-tree", f"{version.path} has no source/dkms.conf", version.path)
        elif not facts.dkms_installed:
            yield finding("dkms-stale-tree", f"{version.path} belongs to no installed package", version.path)
    dkms_wins = facts.on_disk.origin == kernel_module.DKMS
    if facts.secure_boot and dkms_wins and facts.dkms_signer is None:
        found = f"{facts.on_disk.path} carries no signature"
        yield finding("dkms-unsigned-secure-boot", found, secure_boot.EFIVAR)


def _firmware(facts: Facts) -> Iterator[Finding]:
    names = facts.firmware_shadow
    if names and facts.dpkg.version("amdgpu-dkms-firmware") is None:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        found = f"{', '.join(names[:3])}{more} in {firmware_facts.SHADOW}"
        yield finding("firmware-shadow", found, firmware_facts.SHADOW)


def _service(facts: Facts) -> Iterator[Finding]:
    access = facts.access
    if access.exists and (access.missing_groups or access.closed):
        what = [f"not in group {name}" for name in access.missing_groups]
        what += [f"{device} is closed to it" for device in access.closed]
        yield finding(
            "service-user-no-gpu-access",
            f"user {access.user}: {', '.join(what)}",
            "/etc/group" if access.missing_groups else service_user.KFD,
        )
    for override in facts.overrides:
        place = f"{override.path} line {override.line}"
        found = f"{place}: {override.key} is {override.value}, ours is {override.ours}"
        yield finding("config-overridden", found, override.path)
    for stray in facts.hsa_overrides:
        yield finding("hsa-override", f"{stray.path} line {stray.line}: {stray.text}", stray.path)


def _disk(facts: Facts, min_gib: int, bundle_there: bool) -> Iterator[Finding]:
    if facts.bundle_free < min_gib * GIB and not bundle_there:
        found = f"{facts.bundle_free / GIB:.1f} GiB free for {paths.BUNDLE_ROOT}, wanted {min_gib} GiB"
        yield finding("disk-space", found, paths.BUNDLE_ROOT)
    if facts.boot_free < BOOT_MIN_MIB * MIB:
        found = f"{facts.boot_free / MIB:.0f} MiB free in /boot, wanted {BOOT_MIN_MIB} MiB for another initrd"
        yield finding("disk-space", found, "/boot", severity=WARNING)


def host_findings(facts: Facts, wishes: Wishes, *, min_gib: int, bundle_there: bool) -> list[Finding]:
    """Findings about everything but the GPU. *min_gib* is asked for where the bundle is not yet there."""
    return [
        *_repository(facts, wishes),
        *_keys_and_pins(facts),
        *_packages(facts),
        *_dkms(facts),
        *load_blockers(facts),
        *_firmware(facts),
        *_service(facts),
        *_disk(facts, min_gib, bundle_there),
    ]
