# SPDX-License-Identifier: Apache-2.0
"""The facts as they go into ``ansible_facts``: numbers and names, no file contents, no secrets."""

from __future__ import annotations

from typing import Any

from . import apt_sources
from .amdgpu_module import DKMS
from .apt_formats import Entry
from .facts import Apt, Facts


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "file": entry.path,
        "line": entry.line,
        "uri": entry.uri,
        "suite": entry.suite,
        "components": list(entry.components),
        "enabled": entry.enabled,
        "version": apt_sources.version(entry) if apt_sources.is_driver(entry) else None,
        "signed_by": entry.signed_by if entry.signed_by.startswith("/") else "",
    }


def _apt(apt: Apt) -> dict[str, Any]:
    return {
        "apt": [_entry(entry) for entry in apt.entries],
        "keys": [key._asdict() for key in apt.keys],
        "pinned": apt.repository_pin is not None,
        "pins": [pin._asdict() for pin in apt.pins],
    }


def _packages(facts: Facts) -> dict[str, Any]:
    return {
        "dkms": [
            {
                "version": version.version,
                "installed": list(version.installed),
                "broken": version.broken,
                "failed": version.failed_kernel,
            }
            for version in facts.dkms
        ],
        "packages": {
            name: package.version for name, package in facts.dpkg.packages.items() if package.installed
        },
        "dpkg_unfinished": [package.name for package in facts.dpkg.unfinished],
        "dpkg_interrupted": facts.dpkg.interrupted,
    }


def _boot(facts: Facts) -> dict[str, Any]:
    return {
        "blacklists": [f"{line.path}:{line.line}" for line in facts.blacklists],
        "modprobe_options": [f"{item.path}:{item.line}: {item.text}" for item in facts.options],
        "command_line_traps": [trap.word for trap in facts.traps],
        "boot_loader": facts.boot_loader.public(),
        "boot_due": list(facts.due),
        "secure_boot": facts.secure_boot,
    }


def _disk_version(facts: Facts) -> str | None:
    """Version of the DKMS module that would load (the kernel's own has none), as DKMS's tree tells it."""
    if facts.on_disk.origin != DKMS:
        return None
    return next(
        (item.version.partition("-")[0] for item in facts.dkms if facts.kernel in item.installed), None
    )


def public(facts: Facts) -> dict[str, Any]:
    """The facts for JSON."""
    return {
        "distribution": {"id": facts.distribution.id, "version": facts.distribution.version},
        "kernel": facts.kernel,
        "gpu": [gpu.public() for gpu in facts.gpus],
        "module": {
            "loaded": facts.loaded._asdict(),
            "on_disk": {**facts.on_disk._asdict(), "version": _disk_version(facts)},
            "changed": facts.module_changed,
        },
        **_packages(facts),
        **_apt(facts.apt),
        **_boot(facts),
        "firmware_shadow": list(facts.firmware_shadow),
        "service_user": facts.access._asdict(),
        "hsa_overrides": [f"{item.path}:{item.line}: {item.text}" for item in facts.hsa_overrides],
        "memory_kib": facts.memory_kib,
        "disk_free": {"bundle": facts.bundle_free, "boot": facts.boot_free},
    }
