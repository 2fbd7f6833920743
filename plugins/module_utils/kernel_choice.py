# SPDX-License-Identifier: Apache-2.0
"""What a kernel is wanted for, how a kernel is judged for that, and which one of several is taken.

Apart from the search in apt (module ``kernel_candidates``), which only a host that needs a kernel does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from . import driver_releases, kernels
from .distribution import Distribution
from .kernels import Forecast, Kernel


class KernelCandidate(NamedTuple):
    """A kernel to be had. ``source``: hwe, oem, distro, archive or pinned."""

    release: str
    packages: tuple[str, ...]
    source: str
    forecast: Forecast


class Question(NamedTuple):
    """What a kernel is wanted for.

    ``dkms`` is the driver release it must suit, None where the kernel's own driver is to run.
    ``signed``: Secure Boot takes no unsigned kernel.
    """

    distribution: Distribution
    isas: tuple[str, ...]
    source: str = "auto"
    version: str = ""
    under_dkms: bool = False
    dkms: driver_releases.DriverRelease | None = None
    signed: bool = False


def judge(question: Question, kernel: Kernel) -> Forecast:
    """The forecast for a kernel, with DKMS's limits where its module is to run."""
    own = kernels.forecast_all(kernel, question.isas)
    if not question.under_dkms:
        return own
    builds = driver_releases.builds_on(question.dkms, kernel.series)
    if builds is None:
        return Forecast(kernels.UNPROVEN, "nobody has said whether this DKMS builds on it")
    if not builds:
        newest = ".".join(map(str, question.dkms.newest_kernel)) if question.dkms else "?"
        return Forecast(kernels.BAD, f"AMD's DKMS builds on kernels up to {newest}")
    return own


def choose(
    candidates: Iterable[KernelCandidate], running: str, accept_unproven: bool
) -> KernelCandidate | None:
    """The first fixed kernel; the first unproven one only where nothing fixed is to be had."""
    others = [candidate for candidate in candidates if candidate.release != running]
    accepted = (kernels.FIXED, kernels.UNPROVEN) if accept_unproven else (kernels.FIXED,)
    for verdict in accepted:
        for candidate in others:
            if candidate.forecast.verdict == verdict:
                return candidate
    return None
