# SPDX-License-Identifier: Apache-2.0
"""Whether a DKMS driver builds on every kernel that its package would build it for. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from . import apt_sources, driver_releases, kernels
from .facts import Facts
from .refusal import Refused

KIND = "dkms-breaks-kernel"  # the finding


def refusal(module: str, wanted: str, others: Iterable[str]) -> Refused | None:
    """Why a driver must not be installed that does not build on *wanted*, or on another kernel with headers.

    The package builds for the running and for the newest kernel too, and stays half-configured where
    one of these builds fails. What nobody has said anything about is let through.
    """
    known = driver_releases.by_module(module)
    for release in dict.fromkeys([wanted, *others]):
        kernel = kernels.parse(release)
        if kernel is None or driver_releases.builds_on(known, kernel.series) is not False:
            continue
        good = [item.repository for item in driver_releases.RELEASES if item.newest_kernel >= kernel.series]
        later = (
            f"Set amdgpu_driver_repo_version to {good[0]} or later" if good else "Wait for a later release"
        )
        away = "" if release == wanted else f", or remove linux-headers-{release} first"
        return Refused(
            f"amdgpu-dkms {module} does not build on the kernel {release}.",
            f"{later}{away}, or use amdgpu_driver_policy: intree (the default on APUs).",
            KIND,
        )
    return None


def foresee(facts: Facts, version: str, exact: bool, wanted: str) -> Refused | None:
    """What the driver layer would refuse: repository *version* (*exact*ly it, or later) for kernel *wanted*.

    A package that is installed and will do stays, and is not built again. Only what is sure is refused:
    where several sources will do, or one is ``latest``, apt has the last word.
    """
    sources = [text for text in map(apt_sources.version, facts.apt.drivers) if text is not None]
    good = [text for text in sources if driver_releases.satisfies(text, version, exact)]
    releases = [driver_releases.release(text) for text in good or [version]]
    modules = [release.module for release in releases if release is not None]
    if driver_releases.LATEST in (version, *good) or len(modules) < len(releases):
        return None
    package = facts.dpkg.packages.get("amdgpu-dkms")
    if package is not None and package.state == "installed":
        module = driver_releases.module_version(package.version)
        known = driver_releases.by_module(module)
        later = known is not None and driver_releases.satisfies(known.repository, version, exact)
        if module in modules or later:
            return None
    refusals = [refusal(module, wanted, facts.header_kernels) for module in modules]
    return None if None in refusals else refusals[0]
