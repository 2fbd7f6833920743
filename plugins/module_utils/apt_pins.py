# SPDX-License-Identifier: Apache-2.0
"""apt's pins for AMD's repository, and the kit's own that keeps amdgpu-dkms away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from . import paths
from .host import Host

PREFERENCES = "/etc/apt/preferences"
PARTS = "/etc/apt/preferences.d"
# What AMD's installer ships: without it Ubuntu's own rocminfo wins by version (ROCm#3656, #6367).
REPOSITORY_PIN = "release o=repo.radeon.com"
REPOSITORY_PRIORITY = 600
# Above 500 the repository wins over the distribution's archive.
DISTRIBUTION_PRIORITY = 500
_AMD_PIN = re.compile(r"(release\b.*\bo=|origin\s+)\"?repo\.radeon\.com\"?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.pref)?|[A-Za-z0-9_.-]+\.pref")


class Pin(NamedTuple):
    """One stanza of a preference file. ``priority`` is None where it is no number: apt ignores it."""

    path: str
    line: int
    packages: tuple[str, ...]
    pin: str
    priority: int | None


def parse(path: str, text: str) -> Iterator[Pin]:
    """Pins of a preference file (apt_preferences(5))."""
    fields: dict[str, str] = {}
    first = 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        name, colon, value = line.partition(":")
        if line.startswith(("#", "Explanation:")):
            continue
        if line.strip() and colon:
            first = first or number
            fields[name.strip().lower()] = value.strip()
        elif not line.strip() and fields:
            priority = fields.get("pin-priority", "")
            yield Pin(
                path,
                first,
                tuple(fields.get("package", "").split()),
                fields.get("pin", ""),
                int(priority) if re.fullmatch(r"-?\d+", priority) else None,
            )
            fields, first = {}, 0


def read_pins(host: Host) -> list[Pin]:
    """All pins that apt reads."""
    names = [name for name in host.listdir(PARTS) if _NAME.fullmatch(name)]
    found: list[Pin] = []
    for path in (PREFERENCES, *(f"{PARTS}/{name}" for name in names)):
        found += parse(path, host.read(path) or "")
    return found


def repository_pin(pins: list[Pin]) -> Pin | None:
    """The pin that lets AMD's repository win, or None where there is none that works."""
    for pin in pins:
        wins = pin.priority is not None and pin.priority > DISTRIBUTION_PRIORITY
        if "*" in pin.packages and wins and _AMD_PIN.match(pin.pin):
            return pin
    return None


def malformed(pins: list[Pin]) -> list[Pin]:
    """Pins that look meant for AMD's repository and do nothing (ROCm#3946: a literal \\n; #5797)."""
    meant = (pin for pin in pins if "radeon" in pin.path or "rocm" in pin.path or "radeon" in pin.pin)
    return [
        pin for pin in meant if pin.priority is None or not pin.pin or '""' in pin.pin or "\\n" in pin.pin
    ]


_AMD_PACKAGES = re.compile(r"amdgpu|rocm|rocminfo|hsa-|hip", re.IGNORECASE)


def concerns_amd(pin: Pin) -> bool:
    """Whether a pin is about AMD's repositories or packages."""
    about = re.search(r"repo\.(radeon|amd)\.com", pin.pin)
    return about is not None or any(map(_AMD_PACKAGES.match, pin.packages))


def own_pin(pins: list[Pin]) -> Pin | None:
    """The kit's pin that keeps amdgpu-dkms from coming back, or None."""
    for pin in pins:
        if pin.path == paths.APT_PIN and "amdgpu-dkms" in pin.packages and (pin.priority or 0) < 0:
            return pin
    return None
