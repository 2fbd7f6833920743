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


class Mainline(NamedTuple):
    """Where Ubuntu's mainline builds and their signing key are; each an address or a path on the host."""

    url: str = "https://kernel.ubuntu.com/mainline"
    fingerprint: str = "60AA7B6F30434AE68E569963E50C6A0917C622B0"  # Kernel PPA <kernel-ppa@canonical.com>
    key: str = ""  # empty: keyserver.ubuntu.com


class Deb(NamedTuple):
    """One package of a mainline build; ``sha256`` from the signed list. ``size`` in bytes, 0: not known."""

    name: str
    url: str
    sha256: str
    size: int = 0


class AptSource(NamedTuple):
    """An apt source that a kernel needs and the host has not."""

    path: str
    content: str


class KernelCandidate(NamedTuple):
    """A kernel to be had. ``source``: hwe, oem, distro, archive, backports or mainline.

    ``debs`` are what mainline consists of. ``target`` is apt's target release (``-t``), and
    ``apt_source`` what must be added first; both for backports.
    """

    release: str
    packages: tuple[str, ...]
    source: str
    forecast: Forecast
    debs: tuple[Deb, ...] = ()
    target: str = ""
    apt_source: AptSource | None = None


class Question(NamedTuple):
    """What a kernel is wanted for.

    ``dkms`` is the driver release it must suit, None where the kernel's own driver is to run.
    ``signed``: Secure Boot takes no unsigned kernel. ``headers``: DKMS modules of the host need them.
    """

    distribution: Distribution
    isas: tuple[str, ...]
    source: str = "auto"
    version: str = ""
    under_dkms: bool = False
    dkms: driver_releases.DriverRelease | None = None
    signed: bool = False
    headers: bool = False


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
