# SPDX-License-Identifier: Apache-2.0
"""Look for the kernels that a host could get: its apt, Debian's backports, Ubuntu's mainline builds.

Only a host that needs a kernel gets here. Nothing on it is changed: apt runs on a private state, with
AMD's repositories left out, and of a mainline build only pages, lists and first bytes are read.
"""

from __future__ import annotations

from . import backports, kernel_candidates, mainline, mainline_candidates
from .apt import PrivateApt
from .distribution import Distribution
from .fetch import FetchError
from .host import Host
from .kernel_choice import KernelCandidate, Mainline, Question
from .mainline_source import KIND
from .refusal import Refused

# What kernel_source may be, beside auto and keep. Mainline builds are Ubuntu's; Debian installs them too.
_UBUNTU = ("distro", "hwe", "oem", "mainline")
_DEBIAN = ("distro", "backports", "mainline")
# auto asks for mainline from this release on: the packages' scripts need as new a debianutils.
_MAINLINE_SINCE = "24.04"


def demand_source(distribution: Distribution, source: str) -> None:
    """Refuse a kernel_source that this distribution does not have. Raises Refused."""
    known = _UBUNTU if distribution.ubuntu else _DEBIAN
    if source in ("auto", "keep", *known):
        return
    raise Refused(
        f"kernel_source {source} has no meaning on {distribution.name}.",
        f"Use auto, keep, or one of {', '.join(known)}.",
        KIND,
    )


def search(
    host: Host, question: Question, settings: Mainline, *, secure_boot: bool
) -> tuple[list[KernelCandidate], list[str]]:
    """(kernels to be had, preferred first; what went wrong on the way). Raises Refused."""
    distribution, source = question.distribution, question.source
    question = question._replace(headers=bool(mainline_candidates.needs_headers(host, question)))
    demand_source(distribution, source)
    target, planned = "", None
    if source in ("auto", "backports"):
        target, planned = backports.plan(host, distribution, source)
        if source == "backports" and not target:
            raise Refused(f"{distribution.name} has no backports.", "Use kernel_source distro.", KIND)
    with PrivateApt(host, sources={planned.path: planned.content} if planned else None) as apt:
        problems = apt.update()
        found: list[KernelCandidate] = []
        if source != "mainline":
            found = kernel_candidates.find(apt, question, target, planned)
        if _wants_mainline(question, found):
            try:
                mainline_candidates.demand_bootable(host, secure_boot)
                build = mainline_candidates.find(host, question, settings, apt)
            except Refused as refusal:
                # One source of several may fail; a wrong signature is no failure but an alarm.
                if source == "mainline" or (refusal.kind == KIND):
                    raise _named(refusal) from refusal
                problems = [*problems, mainline_candidates.explain(refusal)]
            except (mainline.Unusable, OSError) as error:
                if source == "mainline":
                    raise _unusable(error, settings) from error
                problems = [*problems, mainline_candidates.explain(error)]
            else:
                found = [build, *found]  # what else there is, is OEM or not proven
    return found, problems


def _wants_mainline(question: Question, found: list[KernelCandidate]) -> bool:
    if question.source == "mainline":
        return True
    distribution = question.distribution
    if question.source != "auto" or not distribution.ubuntu or distribution.version < _MAINLINE_SINCE:
        return False
    return not found if question.version else not kernel_candidates.settled(found)


def _named(refusal: Refused) -> Refused:
    """A download that failed, as a refusal of its own kind."""
    if isinstance(refusal, FetchError):
        return _unusable(refusal, None)
    return refusal


def _unusable(error: Exception, settings: Mainline | None) -> Refused:
    where = f" ({settings.url})" if settings else ""
    said = error.found if isinstance(error, FetchError) else f"{error}."
    return Refused(
        f"No mainline kernel can be taken{where}: {said}",
        "Correct kernel_mainline_url or kernel_version, or take another kernel_source (docs/kernel.md).",
        "no-decision",
    )
