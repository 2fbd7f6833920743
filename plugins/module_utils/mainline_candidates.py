# SPDX-License-Identifier: Apache-2.0
"""The mainline build to take: the newest stable version that suits, verified and installable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from . import apt_plan, dkms, kernel_signing, kernels, mainline, mainline_debs
from .apt import PrivateApt
from .dkms import TREE
from .fetch import FetchError
from .host import Host
from .kernel_choice import Deb, KernelCandidate, Mainline, Question, judge
from .mainline_source import Reader
from .refusal import Refused

_TRIED = 5  # versions looked at: the newest ones may have failed to build, or need a newer release
_NAMED = 3  # versions named where the one that was asked for is not to be had


def other_dkms(host: Host) -> list[str]:
    """DKMS modules of the host beside AMD's: they need the new kernel's headers to be built for it."""
    names = (name for name in host.listdir(TREE) if name not in (dkms.MODULE, "mok.key", "mok.pub"))
    return [name for name in names if host.glob(f"{TREE}/{name}/*/source")]


def needs_headers(host: Host, question: Question) -> list[str]:
    """The DKMS modules for whose sake headers are installed."""
    return [*(["amdgpu"] if question.under_dkms else []), *other_dkms(host)]


def demand_bootable(host: Host, secure_boot: bool) -> None:
    """Refuse an unsigned kernel where the firmware would not start it. Raises Refused."""
    missing = kernel_signing.lacks(host) if secure_boot else ""
    if missing:
        raise Refused(
            f"Secure Boot is on, mainline kernels are not signed, and signing is not set up ({missing}).",
            "Take a kernel of the distribution (kernel_source), set up signing (docs/kernel.md), or turn "
            "Secure Boot off.",
            "secure-boot-unsigned-kernel",
        )


def find(host: Host, question: Question, settings: Mainline, apt: PrivateApt) -> KernelCandidate:
    """The first build that can be taken. *apt* answers whether its dependencies are to be had.

    Raises mainline.Unusable (none, and why), FetchError, mainline_source.Tampered.
    """
    reader = Reader(host, settings)
    there = reader.tree.versions()
    wanted = list(_suiting(question, there))
    where = reader.tree.local or reader.tree.url
    headers, tried = needs_headers(host, question), []
    if not wanted:
        asked = question.version or "a stable version that suits"
        raise mainline.Unusable(f"{where} has not {asked}; {_instead(question, reader, there, headers)}")
    for version in wanted[:_TRIED]:
        try:
            return _candidate(host, question, reader, version, headers, apt)
        except mainline.Unusable as why:
            tried.append(f"{version.folder[1:]}: {why}")
    if question.version:
        tried.append(_instead(question, reader, there, headers))
    raise mainline.Unusable("; ".join(tried))


def _instead(question: Question, reader: Reader, there: list[mainline.Version], headers: list[str]) -> str:
    """What to name instead: the newest builds that suit and are whole; what was not built is left out."""
    if not there:
        return "it has no version at all"
    if not question.version:
        return f"its newest is {there[0].folder[1:]}"
    whole: list[str] = []
    try:
        for version in islice(_suiting(question._replace(version=""), there), _TRIED):
            with suppress(mainline.Unusable):
                reader.build(version, bool(headers))
                whole.append(version.folder[1:])
    except Refused:
        return (
            "what else is there could not be looked at"  # the network, or a signature: told where it counts
        )
    if not whole:
        return "none of its newest builds suits this host"
    return f"the newest there that suit this host are {', '.join(whole[:_NAMED])}"


def _candidate(
    host: Host,
    question: Question,
    reader: Reader,
    version: mainline.Version,
    headers: list[str],
    apt: PrivateApt,
) -> KernelCandidate:
    debs = reader.build(version, bool(headers))
    simulation = apt_plan.Simulation()
    try:
        simulation, debs = mainline_debs.simulate(host, debs, apt)
    except mainline.Unusable as error:
        if not mainline_debs.sound(apt):
            # The driver's layer repairs it first; the kernel's layer then asks again, and strictly.
            return _taken(question, version.release, debs)
        needed = f" (headers are needed by the DKMS modules {', '.join(headers)})" if headers else ""
        raise mainline.Unusable(f"{error}{needed}") from error
    if simulation.remove:
        raise mainline.Unusable(f"installing it would remove {', '.join(simulation.remove)}")
    return _taken(question, version.release, debs)


def _taken(question: Question, release: str, debs: tuple[Deb, ...]) -> KernelCandidate:
    kernel = kernels.parse(release)
    forecast = judge(question, kernel) if kernel else kernels.forecast_all(None, question.isas)
    return KernelCandidate(release, tuple(deb.name for deb in debs), "mainline", forecast, debs)


def _suiting(question: Question, there: list[mainline.Version]) -> Iterator[mainline.Version]:
    for version in there:
        kernel = kernels.parse(version.release)
        if kernel is None:
            continue
        if question.version:
            if kernels.is_pin_of(question.version, kernel):
                yield version
        elif version.number >= mainline.OLDEST and judge(question, kernel).verdict == kernels.FIXED:
            yield version


def explain(error: Exception) -> str:
    """What kept mainline from giving a kernel, in one line."""
    found = error.found if isinstance(error, FetchError) else str(error)
    return f"mainline: {found}"
