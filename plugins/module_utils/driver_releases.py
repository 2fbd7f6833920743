# SPDX-License-Identifier: Apache-2.0
"""AMD's driver releases: repository directory, DKMS version, ROCm, and the kernels each builds on."""

from __future__ import annotations

import re
from typing import NamedTuple

from .refusal import Refused

# The first release whose DKMS carries the CWSR fix (kernel base 6.19), and this kit's minimum.
DEFAULT_VERSION = "31.20"
LATEST = "latest"


class DriverRelease(NamedTuple):
    """``repository`` is the directory below amdgpu/, ``module`` the module's version.

    ``newest_kernel`` is the newest kernel series (major, minor) this DKMS is known to build on.
    """

    repository: str
    module: str
    rocm: str
    newest_kernel: tuple[int, int]


# Sources: AMD's versions.rst, release notes and compatibility matrix; silogen/cluster-bloom
# docs/gpu-driver-support.md. Kernels: ROCm#5624 (6.16.6 on 6.17), ROCm#5905 and ROCm#6193 (6.16.13
# fails on 6.18 and later), ROCm#6193 (AMD: the base version is the newest supported kernel, 6.19 for
# 31.20), docs of 31.30 showing it built on 7.0; ROCm/amdgpu#192 (6.12.12 fails on 6.14).
RELEASES = (
    DriverRelease("6.4.1", "6.12.12", "6.4.1", (6, 13)),
    DriverRelease("30.10", "6.14.14", "7.0.0", (6, 14)),
    DriverRelease("30.10.1", "6.14.14", "7.0.1", (6, 14)),
    DriverRelease("30.10.2", "6.14.14", "7.0.2", (6, 14)),
    DriverRelease("30.20", "6.16.6", "7.1.0", (6, 17)),
    DriverRelease("30.20.1", "6.16.6", "7.1.1", (6, 17)),
    DriverRelease("30.30", "6.16.13", "7.2.0", (6, 17)),
    DriverRelease("30.30.1", "6.16.13", "7.2.1", (6, 17)),
    DriverRelease("30.30.2", "6.16.13", "7.2.2", (6, 17)),
    DriverRelease("30.30.3", "6.16.13", "7.2.3", (6, 17)),
    DriverRelease("30.30.4", "6.16.13", "7.2.4", (6, 17)),
    DriverRelease("31.20", "6.19.0", "7.12.0", (6, 19)),
    DriverRelease("31.30", "6.19.4", "7.13.0", (7, 0)),
    DriverRelease("31.40", "6.19.14", "7.14.0", (7, 0)),
    DriverRelease("31.40.1", "6.19.14", "7.14.0", (7, 0)),
    DriverRelease("31.50", "6.19.18", "10.0.0", (7, 0)),
)
_BY_REPOSITORY = {release.repository: release for release in RELEASES}


def key(version: str) -> tuple[int, ...]:
    """Sort key of a repository version. ``latest`` is above all; 31.20 and 31.20.0 are equal.

    Raises ValueError for anything else.
    """
    if version == LATEST:
        return (1_000_000,)
    numbers = [int(part) for part in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def known_form(version: str) -> bool:
    """Whether a text can be a repository version: numbers with dots, or ``latest``."""
    return version == LATEST or re.fullmatch(r"[0-9]+(\.[0-9]+)*", version) is not None


def demand_form(version: str) -> None:
    """Refuse what is no repository version (amdgpu_driver_repo_version). Raises Refused."""
    if not known_form(version):
        raise Refused(
            f"amdgpu_driver_repo_version {version!r} is no repository version.",
            f"Use numbers like {DEFAULT_VERSION}, or latest.",
        )


def satisfies(version: str, wanted: str, exact: bool = False) -> bool:
    """Whether a repository version is the wanted one, or (unless *exact*) a later one."""
    return key(version) == key(wanted) if exact else key(version) >= key(wanted)


def release(version: str) -> DriverRelease | None:
    """What is known of a repository version, or None. ``latest`` is what is newest here."""
    return RELEASES[-1] if version == LATEST else _BY_REPOSITORY.get(version)


def module_version(package_version: str) -> str:
    """Module version in a DKMS package's version: 1:6.16.13.30300000-2278356.24.04 -> 6.16.13."""
    upstream = package_version.rpartition(":")[2].partition("-")[0]
    return ".".join(upstream.split(".")[:3])


def build(package_version: str) -> str | None:
    """Build number that packages of one driver release share: …-2278356.24.04 -> 2278356."""
    _upstream, dash, revision = package_version.rpartition("-")
    number = revision.partition(".")[0]
    return number if dash and number.isdigit() else None


def by_module(module: str) -> DriverRelease | None:
    """The first release with this module version, or None."""
    return next((item for item in RELEASES if item.module == module), None)


def builds_on(known: DriverRelease | None, kernel: tuple[int, int]) -> bool | None:
    """Whether a release's DKMS builds on a kernel series (major, minor); None where nobody said."""
    return None if known is None else kernel <= known.newest_kernel
