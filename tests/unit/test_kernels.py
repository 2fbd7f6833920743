# SPDX-License-Identifier: Apache-2.0
"""Kernel releases, verdicts, and the kernels that apt could give."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy.domain import driver_releases, kernels
from lemonade_deploy.domain.apt_plan import Candidate
from lemonade_deploy.domain.distribution import Distribution
from lemonade_deploy.domain.kernel_candidates import find
from lemonade_deploy.domain.kernel_choice import KernelCandidate, Question, choose, judge

NOBLE = Distribution("ubuntu", "24.04", "noble")
RESOLUTE = Distribution("ubuntu", "26.04", "resolute")
TRIXIE = Distribution("debian", "13", "trixie")


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    kernel = kernels.parse(text)
    assert kernels.forecast_all(kernel, ["gfx1151"]).verdict in ("fixed", "unproven", "bad")


def test_the_worst_gpu_counts() -> None:
    kernel = kernels.parse("6.17.0-20-generic")
    assert kernels.forecast_all(kernel, ["gfx1100", "gfx1150"]).verdict == "bad"
    assert kernels.forecast_all(kernel, ["gfx1100"]).verdict == "fixed"
    assert kernels.forecast_all(kernel, []).verdict == "unproven"


class FakeApt:
    """apt with these packages: name -> Depends."""

    def __init__(self, packages: dict[str, str], known: Iterable[str] = ()) -> None:
        self.packages = packages
        self.known = {*packages, *known}

    def candidates(self, packages: Iterable[str]) -> dict[str, Candidate]:
        return {p: Candidate(p, "1", "http://x", self.packages[p]) for p in packages if p in self.packages}

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.known if name.startswith(prefix))


def image(release: str, *more: str) -> dict[str, str]:
    names = [f"linux-image-{release}", f"linux-modules-extra-{release}", f"linux-headers-{release}", *more]
    return {name: "" for name in names}


def ubuntu(hwe: str) -> dict[str, str]:
    """An archive as 24.04's: HWE and OEM metas and a mainline build."""
    return {
        "linux-generic-hwe-24.04": "linux-image-generic-hwe-24.04 (= 1), linux-headers-generic-hwe-24.04",
        "linux-image-generic-hwe-24.04": f"linux-image-{hwe} (= 1), linux-modules-extra-{hwe}",
        "linux-oem-24.04d": "linux-image-oem-24.04d (= 1)",
        "linux-image-oem-24.04d": "linux-image-6.17.0-1033-oem | linux-image-unsigned-6.17.0-1033-oem",
        "linux-generic": "linux-image-generic",
        "linux-image-generic": "linux-image-6.8.0-45-generic",
        **image(hwe),
        **image("6.17.0-1033-oem"),
        **image("6.14.0-37-generic"),
    }


MAINLINE = image("6.18.20-061820-generic")
DKMS_3120 = driver_releases.release("31.20")


def first(apt: FakeApt, question: Question, running: str = "6.14.0-37-generic") -> KernelCandidate | None:
    return choose(find(apt, question), running, accept_unproven=True)


@pytest.mark.parametrize(
    ("packages", "question", "release", "names"),
    [
        # 24.04: HWE once it is 7.0.
        (
            {**ubuntu("7.0.0-31-generic"), **MAINLINE},
            Question(NOBLE, ("gfx1151",)),
            "7.0.0-31-generic",
            ("linux-generic-hwe-24.04",),
        ),
        # HWE still 6.17.0-20: a fixed one of any name, then OEM as unproven.
        (
            {**ubuntu("6.17.0-20-generic"), **MAINLINE},
            Question(NOBLE, ("gfx1151",)),
            "6.18.20-061820-generic",
            ("linux-image-6.18.20-061820-generic", "linux-modules-extra-6.18.20-061820-generic"),
        ),
        (
            ubuntu("6.17.0-20-generic"),
            Question(NOBLE, ("gfx1151",)),
            "6.17.0-1033-oem",
            ("linux-oem-24.04d",),
        ),
        # Secure Boot takes no unsigned kernel.
        (
            {**ubuntu("6.17.0-20-generic"), **MAINLINE},
            Question(NOBLE, ("gfx1151",), signed=True),
            "6.17.0-1033-oem",
            ("linux-oem-24.04d",),
        ),
        # Under DKMS 31.20 a kernel up to 6.19, with its headers.
        (
            {**ubuntu("7.0.0-31-generic"), **MAINLINE},
            Question(NOBLE, ("gfx1151",), under_dkms=True, dkms=DKMS_3120),
            "6.18.20-061820-generic",
            (
                "linux-image-6.18.20-061820-generic",
                "linux-modules-extra-6.18.20-061820-generic",
                "linux-headers-6.18.20-061820-generic",
            ),
        ),
        # A source that is named is the only one.
        (
            ubuntu("7.0.0-31-generic"),
            Question(NOBLE, ("gfx1151",), "oem"),
            "6.17.0-1033-oem",
            ("linux-oem-24.04d",),
        ),
        (
            {**ubuntu("7.0.0-31-generic"), **MAINLINE},
            Question(NOBLE, ("gfx1151",), version="6.18.20-061820-generic"),
            "6.18.20-061820-generic",
            ("linux-image-6.18.20-061820-generic", "linux-modules-extra-6.18.20-061820-generic"),
        ),
        # 26.04: the distribution's own.
        (
            {"linux-generic": "linux-image-generic", "linux-image-generic": "linux-image-7.0.0-20-generic"},
            Question(RESOLUTE, ("gfx1151",)),
            "7.0.0-20-generic",
            ("linux-generic",),
        ),
        # Debian 13: backports before its own 6.12, where KFD sees half of the memory.
        (
            {
                "linux-image-amd64": "linux-image-6.12.107+deb13-amd64 (= 6.12.107-1)",
                "linux-image-6.12.107+deb13-amd64": "",
                "linux-image-7.1.8+deb13-amd64": "",
                "linux-image-7.1.8+deb13-cloud-amd64": "",
                "linux-image-7.1.8+deb13-amd64-dbg": "",
                "linux-image-7.1.9+deb13-rt-amd64": "",
            },
            Question(TRIXIE, ("gfx1151",)),
            "7.1.8+deb13-amd64",
            ("linux-image-7.1.8+deb13-amd64",),
        ),
        (
            {"linux-image-amd64": "linux-image-6.12.107+deb13-amd64", "linux-image-6.12.107+deb13-amd64": ""},
            Question(TRIXIE, ("gfx1151",), "distro"),
            "6.12.107+deb13-amd64",
            ("linux-image-amd64",),
        ),
    ],
)
def test_order_of_candidates(
    packages: dict[str, str], question: Question, release: str, names: tuple[str, ...]
) -> None:
    chosen = first(FakeApt(packages), question)
    assert chosen is not None
    assert (chosen.release, chosen.packages) == (release, names)


def test_names_without_a_candidate_and_bad_kernels_are_no_choice() -> None:
    apt = FakeApt(ubuntu("6.17.0-20-generic"), ["linux-image-7.0.0-99-generic", "linux-image-extra-virtual"])
    hwe = find(apt, Question(NOBLE, ("gfx1151",), "hwe"))
    assert choose(hwe, "6.14.0-37-generic", accept_unproven=False) is None
    chosen = first(apt, Question(NOBLE, ("gfx1151",)))
    assert chosen is not None and chosen.forecast.verdict == "unproven" and chosen.source == "oem"
    assert choose(find(apt, Question(NOBLE, ("gfx1151",))), "x", accept_unproven=False) is None
    assert find(FakeApt({}), Question(NOBLE, ("gfx1151",))) == []


def test_dkms_that_nobody_described_makes_every_kernel_unproven() -> None:
    question = Question(NOBLE, ("gfx1151",), under_dkms=True, dkms=None)
    kernel = kernels.parse("7.0.0-31-generic")
    assert kernel is not None
    assert judge(question, kernel).verdict == "unproven"


@pytest.mark.parametrize(
    ("version", "wanted", "exact", "expected"),
    [
        ("30.30", "31.20", False, False),
        ("30.30.4", "31.20", False, False),
        ("7.2", "31.20", False, False),
        ("6.4.3", "31.20", False, False),
        ("31.20", "31.20", False, True),
        ("31.40.1", "31.20", False, True),
        ("latest", "31.20", False, True),
        ("latest", "31.20", True, False),
        ("31.30", "31.20", True, False),
        ("31.20", "31.20", True, True),
        ("31.3", "31.20", False, False),
    ],
)
def test_repository_versions(version: str, wanted: str, exact: bool, expected: bool) -> None:
    assert driver_releases.satisfies(version, wanted, exact) is expected


def test_repository_version_of_another_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        driver_releases.key("newest")


def test_dkms_versions_and_builds() -> None:
    assert driver_releases.module_version("1:6.16.13.30300000-2278356.24.04") == "6.16.13"
    assert driver_releases.module_version("6.19.14-2377056") == "6.19.14"
    assert driver_releases.build("1:6.16.13.30300000-2278356.24.04") == "2278356"
    assert driver_releases.build("30.30.0.0.30300000-2278356.24.04") == "2278356"
    assert driver_releases.build("1.0") is None


@pytest.mark.parametrize(
    ("repository", "kernel", "expected"),
    [
        ("30.30", (6, 17), True),
        ("30.30", (6, 18), False),
        ("31.20", (6, 19), True),
        ("31.20", (7, 0), False),
        ("31.30", (7, 0), True),
        ("31.10", (6, 17), None),
    ],
)
def test_kernels_each_dkms_builds_on(repository: str, kernel: tuple[int, int], expected: bool | None) -> None:
    assert driver_releases.builds_on(driver_releases.release(repository), kernel) is expected
