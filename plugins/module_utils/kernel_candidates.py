# SPDX-License-Identifier: Apache-2.0
"""Kernels that a host could get from its own apt sources, in the order they are preferred."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from . import kernels
from .distribution import Distribution
from .kernel_choice import AptSource, KernelCandidate, Question, judge
from .kernels import Kernel

# Packages whose newest version the distribution itself calls "the kernel", by kernel_source.
_OEM = {"22.04": ("linux-oem-22.04d",), "24.04": ("linux-oem-24.04d",)}
_IMAGE = re.compile(r"\blinux-image(?:-unsigned)?-(\d[^\s,|(]*)")
_META = re.compile(r"\b(linux-[a-z][^\s,|(]*)")
_CONCRETE = re.compile(r"linux-image-(unsigned-)?(\d\S*)")
# Kernels that are not for a general server, and packages that are no kernel.
_UNWANTED = re.compile(r"dbg|dbgsym|cloud|rt-|-rt\b|lowlatency|kvm|unsigned$|template|arm64|riscv")
_TRIED = 4  # concrete packages asked for: a name can be known without being installable


class Candidate(Protocol):
    """What apt says of a package."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def depends(self) -> str:
        """Its Depends field."""


class Apt(Protocol):
    """The part of ``apt.PrivateApt`` used here."""

    def candidates(self, packages: Iterable[str]) -> Any:
        """Candidates (a mapping by name) of those packages that have one."""

    def names(self, prefix: str) -> list[str]:
        """Package names that begin with *prefix*."""


def metas(distribution: Distribution, source: str) -> list[tuple[str, str]]:
    """(source, package) of a distribution's kernel metapackages, in order, for a kernel_source.

    ``auto`` names all of them.
    """
    version = distribution.version
    if distribution.ubuntu:
        hwe, distro = [("hwe", f"linux-generic-hwe-{version}")], [("distro", "linux-generic")]
        oem = [("oem", name) for name in _OEM.get(version, (f"linux-oem-{version}",))]
        # The release's first kernel is old by the time its HWE kernels exist; 26.04's own is new enough.
        usual = hwe + distro if version < "26.04" else distro + hwe
        choices = {"auto": usual + oem, "hwe": hwe, "oem": oem, "distro": usual}
    else:
        distro = [("distro", "linux-image-amd64")]
        choices = {"auto": distro, "distro": distro}
    return choices.get(source, [])


def _release_of(apt: Apt, package: str) -> str | None:
    """The kernel that a metapackage brings now, by following its dependencies."""
    seen: set[str] = set()
    ask = [package]
    for _depth in range(3):
        found = apt.candidates(ask)
        seen.update(ask)
        for candidate in found.values():
            image = _IMAGE.search(candidate.depends)
            if image:
                return image[1]
        ask = sorted(
            {name for c in found.values() for name in _META.findall(c.depends) if "image" in name} - seen
        )
        if not ask:
            return None
    return None


def _with_companions(apt: Apt, question: Question, release: str, first: Sequence[str]) -> tuple[str, ...]:
    """*first* and the packages a kernel needs beside its image, where apt has them."""
    wanted = []
    if not any(name.startswith("linux-generic") or name.startswith("linux-oem") for name in first):
        # Ubuntu keeps amdgpu.ko in linux-modules-extra; mainline builds have all in linux-modules.
        wanted += [f"linux-modules-extra-{release}", f"linux-modules-{release}"]
    if question.under_dkms or question.headers:
        wanted.append(f"linux-headers-{release}")
    there = apt.candidates(wanted) if wanted else {}
    return (*first, *(name for name in wanted if name in there))


def _from_metas(apt: Apt, question: Question) -> Iterator[KernelCandidate]:
    for source, package in metas(question.distribution, question.source):
        release = _release_of(apt, package)
        kernel = kernels.parse(release) if release else None
        if release is None or kernel is None:
            continue
        packages = _with_companions(apt, question, release, [package])
        yield KernelCandidate(release, packages, source, judge(question, kernel))


def _ours(distribution: Distribution, kernel: Kernel) -> bool:
    """Whether a kernel's flavour belongs to the distribution's archive."""
    flavours = ("generic", "oem", "mainline") if distribution.ubuntu else ("debian",)
    return kernel.flavour in flavours


def _concrete(apt: Apt, question: Question) -> list[tuple[Kernel, str]]:
    """(kernel, package) of every image package by name, newest kernel first."""
    found: dict[str, tuple[Kernel, str]] = {}
    for name in apt.names("linux-image-"):
        match = _CONCRETE.fullmatch(name)
        kernel = kernels.parse(match[2]) if match else None
        if match is None or kernel is None or _UNWANTED.search(match[2]):
            continue
        unsigned = match[1] is not None
        if question.signed and (unsigned or kernel.flavour == "mainline"):
            continue
        if kernel.release not in found or not unsigned:
            found[kernel.release] = (kernel, name)
    return sorted(found.values(), key=lambda item: kernels.sort_key(item[0]), reverse=True)


def _from_archive(apt: Apt, question: Question) -> Iterator[KernelCandidate]:
    """Images that are in apt under their own name and carry the fix."""
    tried = 0
    for kernel, package in _concrete(apt, question):
        forecast = judge(question, kernel)
        if forecast.verdict != kernels.FIXED or not _ours(question.distribution, kernel) or tried >= _TRIED:
            continue
        tried += 1
        if package in apt.candidates([package]):
            packages = _with_companions(apt, question, kernel.release, [package])
            yield KernelCandidate(kernel.release, packages, "archive", forecast)


def _pinned(apt: Apt, question: Question) -> Iterator[KernelCandidate]:
    for kernel, package in _concrete(apt, question):
        if kernels.is_pin_of(question.version, kernel) and package in apt.candidates([package]):
            packages = _with_companions(apt, question, kernel.release, [package])
            yield KernelCandidate(kernel.release, packages, "pinned", judge(question, kernel))


def find(
    apt: Apt, question: Question, target: str = "", planned: AptSource | None = None
) -> list[KernelCandidate]:
    """All kernels to be had by apt, preferred first; ``kernel_choice.choose`` takes one.

    *target*: the suite of Debian's backports, "" for none; *planned*: its source where the host has none.
    """
    if not question.distribution.ubuntu:
        return _debian(apt, question, target, planned)
    if question.version:
        return list(_pinned(apt, question))
    named = list(_from_metas(apt, question))
    if question.source != "auto":
        return named
    if named and named[0].forecast.verdict == kernels.FIXED:
        return named  # the metapackage that is preferred anyway: no need to go through the archive
    fixed = [candidate for candidate in named if candidate.forecast.verdict == kernels.FIXED]
    rest = [candidate for candidate in named if candidate not in fixed]
    # Of the unproven ones OEM comes first: HWE before 7.0 is in nobody's list of good kernels.
    rest.sort(key=lambda candidate: candidate.source != "oem")
    archive = sorted(_from_archive(apt, question), key=_is_oem)
    return [*fixed, *archive, *rest]


def _is_oem(candidate: KernelCandidate) -> bool:
    kernel = kernels.parse(candidate.release)
    return kernel is not None and kernel.flavour == "oem"


def settled(candidates: Iterable[KernelCandidate]) -> bool:
    """Whether apt has a kernel that a mainline build would not be preferred to (24.04: HWE, not OEM)."""
    return any(c.forecast.verdict == kernels.FIXED and not _is_oem(c) for c in candidates)


def _debian(apt: Apt, question: Question, target: str, planned: AptSource | None) -> list[KernelCandidate]:
    """On Debian 13's own 6.12 KFD sees half of the memory (ROCm#6143), so backports come first."""
    own = list(_from_metas(apt, question._replace(source="auto")))
    stable = kernels.parse(own[0].release) if own else None

    def labelled(candidate: KernelCandidate) -> KernelCandidate:
        kernel = kernels.parse(candidate.release)
        newer = kernel is not None and (stable is None or kernel.series > stable.series)
        if not (target and newer):
            return candidate
        return candidate._replace(source="backports", target=target, apt_source=planned)

    if question.version:
        return [labelled(candidate) for candidate in _pinned(apt, question)]
    if question.source == "distro":
        return own
    found = [labelled(candidate) for candidate in _from_archive(apt, question)]
    if question.source == "backports":
        return [candidate for candidate in found if candidate.source == "backports"]
    return [*found, *own]
