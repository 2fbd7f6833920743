# SPDX-License-Identifier: Apache-2.0
"""Where a kernel is looked for: apt, Debian's backports, mainline; in which order, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kernel_sources import BUILD, PrivateApt
from test_kernels import NOBLE, RESOLUTE, TRIXIE, image, ubuntu
from trees import dirty, strix_halo

from lemonade_deploy.domain import kernel_search, kernel_signing, mainline, preflight
from lemonade_deploy.domain.decision import Wishes
from lemonade_deploy.domain.distribution import Distribution
from lemonade_deploy.domain.facts import read_facts
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.kernel_choice import (
    KernelCandidate,
    Mainline,
    Question,
)
from lemonade_deploy.domain.mainline_source import Tampered
from lemonade_deploy.domain.module import Refused


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the mainline mirror gives next (an exception is raised); empty: it must not be asked."""
    answers: list[Any] = []

    def find(*_arguments: object) -> KernelCandidate:
        assert answers, "mainline was asked"
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    monkeypatch.setattr(kernel_search.mainline_candidates, "find", find)
    return answers


def search(
    root: Path, distribution: Distribution = NOBLE, source: str = "auto", secure: bool = False, **more: Any
) -> tuple[list[str], list[str]]:
    """(releases in order, problems)."""
    question = Question(distribution, ("gfx1151",), source, signed=secure, **more)
    found, problems = kernel_search.search(Host(str(root)), question, Mainline(), secure_boot=secure)
    return [candidate.release for candidate in found], problems


def test_hwe_of_70_settles_it_without_asking_mainline(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    apt.packages = ubuntu("7.0.0-31-generic")
    assert search(tmp_path)[0][0] == "7.0.0-31-generic"
    apt.packages = {
        "linux-generic": "linux-image-generic",
        "linux-image-generic": "linux-image-7.0.0-20-generic",
    }
    assert search(tmp_path, RESOLUTE)[0] == ["7.0.0-20-generic"]


def test_then_mainline_then_oem(tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]) -> None:
    apt.packages = {**ubuntu("6.17.0-22-generic"), **image("6.14.0-1020-oem")}
    mirror.append(BUILD)
    releases, problems = search(tmp_path)
    # 6.14 OEM is fixed, but it gets no updates any more; 6.17 HWE is in nobody's list of good kernels.
    assert releases[:3] == [BUILD.release, "6.14.0-1020-oem", "6.17.0-1033-oem"] and not problems
    assert set(releases[3:]) == {"6.17.0-22-generic", "6.8.0-45-generic"}


@pytest.mark.parametrize(
    "trouble", [FetchError("https://m: timed out."), mainline.Unusable("no build"), OSError("x")]
)
def test_a_mirror_that_fails_leaves_oem_and_is_told(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any], trouble: Exception
) -> None:
    apt.packages, apt.errors = ubuntu("6.17.0-22-generic"), ["W: apt's own"]
    mirror.append(trouble)
    releases, problems = search(tmp_path)
    assert releases[0] == "6.17.0-1033-oem"
    assert problems[0] == "W: apt's own" and problems[1].startswith("mainline: ")
    mirror.append(trouble)
    with pytest.raises(Refused, match="No mainline kernel can be taken") as caught:
        search(tmp_path, source="mainline")
    assert "kernel_mainline_url" in caught.value.remedy


def test_a_wrong_signature_stops_even_where_another_source_would_do(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    apt.packages = ubuntu("6.17.0-22-generic")
    for source in ("auto", "mainline"):
        mirror.append(Tampered("not signed", "Nothing was changed."))
        with pytest.raises(Tampered):
            search(tmp_path, source=source)


def test_secure_boot_without_signing_leaves_mainline_out_or_refuses_it(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    apt.packages = ubuntu("6.17.0-22-generic")
    releases, problems = search(tmp_path, secure=True)
    assert releases[0] == "6.17.0-1033-oem" and "Secure Boot is on" in problems[0]
    with pytest.raises(Refused, match="Secure Boot is on") as caught:
        search(tmp_path, source="mainline", secure=True)
    assert caught.value.kind == "secure-boot-unsigned-kernel"


def test_mainline_by_name_asks_apt_for_no_kernel(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    apt.packages = ubuntu("7.0.0-31-generic")
    for distribution in (NOBLE, TRIXIE):
        mirror.append(BUILD)
        assert search(tmp_path, distribution, "mainline")[0] == [BUILD.release]


def test_a_pin_that_apt_has_not_may_be_a_mainline_build(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    apt.packages = {**ubuntu("7.0.0-31-generic"), **image("6.18.20-061820-generic")}
    for pin in ("6.18.20", "6.18.20-061820-generic"):
        assert search(tmp_path, version=pin)[0] == ["6.18.20-061820-generic"]
    mirror.append(BUILD)
    assert search(tmp_path, version="6.18.36")[0] == [BUILD.release]
    assert search(tmp_path, source="hwe", version="6.18.36")[0] == []
    # Ubuntu counts its builds: no upstream number means one of them.
    mirror.append(mainline.Unusable("none"))
    assert search(tmp_path, version="7.0.0")[0] == []


def test_jammy_is_not_asked_for_mainline_by_itself(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    assert search(tmp_path, Distribution("ubuntu", "22.04", "jammy"))[0] == []


@pytest.mark.parametrize(
    ("distribution", "source", "good"),
    [
        (NOBLE, "hwe", True),
        (NOBLE, "oem", True),
        (NOBLE, "distro", True),
        (NOBLE, "backports", False),
        (TRIXIE, "backports", True),
        (TRIXIE, "distro", True),
        (TRIXIE, "hwe", False),
        (TRIXIE, "oem", False),
        (Distribution("debian", "", "forky"), "backports", False),
    ],
)
def test_a_source_that_the_distribution_has_not_is_refused(
    tmp_path: Path, apt: type[PrivateApt], distribution: Distribution, source: str, good: bool
) -> None:
    if good:
        search(tmp_path, distribution, source)
        return
    with pytest.raises(Refused) as caught:
        search(tmp_path, distribution, source)
    assert caught.value.kind == "kernel-source-refused" and caught.value.remedy


# What preflight makes of it.


def test_an_alarm_stops_and_is_a_finding_of_its_own(tmp_path: Path) -> None:
    tree = dirty(tmp_path)

    def alarm(*_: object) -> tuple[list[KernelCandidate], list[str]]:
        raise Tampered("CHECKSUMS is not signed by X", "Nothing was changed.")

    report = preflight.look(tree.host, read_facts(tree.host), Wishes(), alarm, 20)
    assert "kernel-source-refused" in preflight.ids(report.findings)
    stop = preflight.stop_reason(report)
    assert stop is not None and stop.found == "CHECKSUMS is not signed by X"


def test_an_unsigned_kernel_is_none_where_the_owner_signs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = strix_halo(tmp_path, "6.18.20-061820-generic").secure_boot()

    def found() -> list[str]:
        return preflight.ids(
            preflight.look(tree.host, read_facts(tree.host), Wishes(), lambda *_: ([], []), 20).findings
        )

    assert "secure-boot-unsigned-kernel" in found()
    monkeypatch.setattr(kernel_signing, "lacks", lambda _host: "")
    assert "secure-boot-unsigned-kernel" not in found()
