# SPDX-License-Identifier: Apache-2.0
"""Kernel releases: what they are, and whether their own amdgpu works for a GPU.

A verdict is "fixed", "unproven" or "bad". It is a forecast: what counts after the boot are the
numbers the kernel shows (module ``cwsr``). Sources: AMD's Strix Halo page ("required kernel
version"), the stable trees (fix in 6.18.4, 6.19, 6.12.64), and the reports named below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

FIXED = "fixed"
UNPROVEN = "unproven"
BAD = "bad"
_ORDER = (BAD, UNPROVEN, FIXED)


class Kernel(NamedTuple):
    """A release as ``uname -r`` shows it, taken apart.

    ``flavour``: mainline (Ubuntu's mainline builds), oem, generic (all other Ubuntu flavours), debian,
    enterprise (RHEL, SLES and kin, whose numbers say little), other. ``abi`` is Ubuntu's build number
    (6.17.0-20-generic: 20), else None.
    """

    release: str
    version: tuple[int, int, int]
    flavour: str
    abi: int | None = None
    candidate: bool = False  # an -rc

    @property
    def series(self) -> tuple[int, int]:
        """(major, minor)."""
        return self.version[:2]


_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(-rc\d+)?(.*)")
_MAINLINE = re.compile(r"-\d{6}(rc\d+)?-\w+")
# Ubuntu's numbers end in .0; openSUSE (6.19.0-1-default) and Arch's other kernels look alike.
_UBUNTU = re.compile(r"-(\d{1,5})-([a-z][a-z0-9-]*)")
_NOT_UBUNTU = ("default", "preempt", "lts", "cachyos", "hardened", "zen")
# Debian's own flavours also end in -<abi>-<name> in old releases: 6.1.0-38-amd64.
_DEBIAN = re.compile(r"(\+deb\d+|\+bpo)?.*-(amd64|cloud-amd64|rt-amd64)(-unsigned)?")
# 6.12.0-124.8.1.el10_1.x86_64, 6.12.0-160000.5-default: a base version with years of backports on top.
_ENTERPRISE = re.compile(r"-\d[\w.]*\.el\d+\w*(\.\w+)*|-\d{5,}[\d.]*-default")
_BARE = re.compile(r"\d+\.\d+(\.\d+)?")


def parse(release: str) -> Kernel | None:
    """A kernel from its release, or None where the text is no kernel release."""
    match = _VERSION.fullmatch(release.strip())
    if match is None:
        return None
    version = (int(match[1]), int(match[2]), int(match[3] or 0))
    candidate, rest = match[4] is not None, match[5]
    if mainline := _MAINLINE.fullmatch(rest):
        return Kernel(release, version, "mainline", None, candidate or mainline[1] is not None)
    if _DEBIAN.fullmatch(rest):
        return Kernel(release, version, "debian", None, candidate)
    if _ENTERPRISE.fullmatch(rest):
        return Kernel(release, version, "enterprise", None, candidate)
    ubuntu = _UBUNTU.fullmatch(rest)
    if ubuntu and version[2] == 0 and ubuntu[2] not in _NOT_UBUNTU:
        flavour = "oem" if ubuntu[2].startswith("oem") else "generic"
        return Kernel(release, version, flavour, int(ubuntu[1]), candidate)
    return Kernel(release, version, "other", None, candidate)


def sort_key(kernel: Kernel) -> tuple[tuple[int, int, int], int, int]:
    """Newer kernels sort higher."""
    return (kernel.version, 0 if kernel.candidate else 1, kernel.abi or 0)


def is_pin_of(pin: str, kernel: Kernel) -> bool:
    """Whether *pin* (kernel_version) means a kernel: its release, or upstream's number where it has one.

    Ubuntu's own kernels count their builds instead: 7.0.0 would mean any of them.
    """
    if pin == kernel.release:
        return True
    named = parse(pin) if _BARE.fullmatch(pin) else None
    upstream = kernel.flavour not in ("generic", "oem", "enterprise") and not kernel.candidate
    return named is not None and upstream and named.version == kernel.version


def halves_memory(kernel: Kernel | None) -> bool:
    """Whether KFD on an APU sees but half of the memory: Debian 13's 6.12 (ROCm#6143)."""
    return kernel is not None and kernel.flavour == "debian" and kernel.series == (6, 12)


class Forecast(NamedTuple):
    """A verdict and the reason for it, in words."""

    verdict: str
    why: str


def worst(forecasts: Iterable[Forecast]) -> Forecast | None:
    """The one with the worst verdict; None for none at all."""
    return min(forecasts, key=lambda forecast: _ORDER.index(forecast.verdict), default=None)


def _upstream(version: tuple[int, int, int]) -> Forecast:
    """Verdict by upstream's stable trees, for kernels whose version number is upstream's."""
    if version >= (6, 18, 4):
        return Forecast(FIXED, "6.18.4 and later carry the CWSR fix")
    if (6, 12, 64) <= version < (6, 13, 0):
        return Forecast(FIXED, "6.12.64 and later of 6.12 carry the CWSR fix")
    return Forecast(BAD, "older than 6.18.4, without the CWSR fix")


# 24.04's 6.17 HWE kernels of which page faults on gfx1151 are reported: ollama#13589, ROCm#6139, #6146,
# ROCm/amdgpu#204. Others report 6.17.0-22 as good, and AMD's page calls all of 6.17 a warning, no "no".
_HWE_617_FAULTS = frozenset({14, 19, 20, 29})


def _gfx1151_ubuntu(kernel: Kernel) -> Forecast:
    abi = kernel.abi or 0
    if kernel.series >= (7, 0):
        return Forecast(FIXED, "Ubuntu's 7.0 kernels carry the CWSR fix")
    if kernel.flavour == "oem" and kernel.series == (6, 14):
        if abi >= 1018:
            return Forecast(FIXED, "6.14.0-1018-oem and later carry the CWSR fix (ROCm#6146)")
        return Forecast(BAD, "OEM kernels before 6.14.0-1018 lack the CWSR fix")
    if kernel.flavour == "oem" and kernel.series == (6, 17) and abi >= 1009:
        return Forecast(
            UNPROVEN, "reports on 6.17 OEM kernels conflict (ROCm#5724, vllm-rocm's known-good set)"
        )
    if kernel.flavour == "generic" and kernel.series == (6, 17):
        if abi in _HWE_617_FAULTS:
            return Forecast(UNPROVEN, "page faults on gfx1151 are reported of this build (ROCm#6139, #6146)")
        return Forecast(
            UNPROVEN, "reports on 6.17 HWE kernels conflict (vllm-rocm's known-good set, ROCm#6139)"
        )
    if kernel.series >= (6, 18):
        return Forecast(UNPROVEN, "an Ubuntu kernel that no report names")
    return Forecast(BAD, "an Ubuntu kernel without the CWSR fix")


def _gfx1151(kernel: Kernel) -> Forecast:
    if kernel.flavour in ("generic", "oem"):
        return _gfx1151_ubuntu(kernel)
    if kernel.candidate:
        return Forecast(UNPROVEN, "a release candidate")
    if kernel.flavour == "enterprise":
        return Forecast(UNPROVEN, "its number does not tell which fixes its distribution added")
    return _upstream(kernel.version)


# gfx1150 faults on 6.17.0-1017-oem and 6.17.0-20-generic, works on 6.14.0-1018-oem (ROCm/amdgpu#213).
_GFX1150_FAULTS = frozenset({("oem", 1017), ("generic", 20)})


def _gfx1150(kernel: Kernel) -> Forecast:
    if kernel.series == (6, 17) and (kernel.flavour, kernel.abi) in _GFX1150_FAULTS:
        return Forecast(BAD, "faults on gfx1150 (ROCm/amdgpu#213)")
    if kernel.series == (6, 17):
        return Forecast(UNPROVEN, "6.17 kernels fault on some gfx1150 boxes (ROCm/amdgpu#213)")
    if kernel.flavour == "enterprise":
        return Forecast(UNPROVEN, "its number does not tell which fixes its distribution added")
    return _since(kernel, (6, 11))


def _since(kernel: Kernel, first: tuple[int, int]) -> Forecast:
    """Verdict for a GPU whose in-tree support begins with a kernel series."""
    name = f"{first[0]}.{first[1]}"
    if kernel.series >= first:
        return Forecast(FIXED, f"in-tree support since {name}")
    if kernel.flavour == "enterprise":
        return Forecast(UNPROVEN, "its number does not tell which drivers its distribution added")
    return Forecast(BAD, f"older than {name}, the first kernel that drives this GPU")


# First kernel series whose in-tree amdgpu runs compute on a GPU (general experience, not measured here).
_FIRST = {
    "gfx1100": (6, 2),
    "gfx1101": (6, 5),
    "gfx1102": (6, 5),
    "gfx1103": (6, 5),
    "gfx1200": (6, 14),
    "gfx1201": (6, 12),
}


def forecast(kernel: Kernel, gfx: str) -> Forecast:
    """Whether a kernel's own amdgpu works for a GPU."""
    if gfx == "gfx1151":
        return _gfx1151(kernel)
    if gfx == "gfx1150":
        return _gfx1150(kernel)
    first = _FIRST.get(gfx)
    return Forecast(UNPROVEN, f"nothing is known about {gfx}") if first is None else _since(kernel, first)


def forecast_all(kernel: Kernel | None, isas: Iterable[str]) -> Forecast:
    """The worst verdict over several GPUs; unproven for a release that cannot be read."""
    if kernel is None:
        return Forecast(UNPROVEN, "a kernel release of an unknown form")
    return worst(forecast(kernel, gfx) for gfx in isas) or Forecast(UNPROVEN, "no GPU to judge by")
