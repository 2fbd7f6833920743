# SPDX-License-Identifier: Apache-2.0
"""A DKMS driver that another kernel would break is refused before anything is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import GOOD_KERNEL, GOOD_SIZES, Tree, radeon, strix_halo

from lemonade_deploy.domain import disk, preflight
from lemonade_deploy.domain.decision import Wishes
from lemonade_deploy.domain.facts import Facts, read_facts
from lemonade_deploy.domain.kernel_choice import KernelCandidate
from lemonade_deploy.domain.kernels import Forecast
from lemonade_deploy.domain.preflight import Report

MAINLINE = "6.18.20-061820-generic"
OFFERED = KernelCandidate(MAINLINE, (f"linux-image-{MAINLINE}",), "archive", Forecast("fixed", "x"))
DKMS = Wishes(policy="dkms")


@pytest.fixture(autouse=True)
def _plenty_of_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _host, _path: 500 * disk.GIB)


def look(tree: Tree, wishes: Wishes) -> Report:
    def ask(_facts: Facts, _wishes: Wishes) -> tuple[list[KernelCandidate], list[str]]:
        return [OFFERED], []

    return preflight.look(tree.host, read_facts(tree.host), wishes, ask, 20)


def headers(tree: Tree, *releases: str) -> Tree:
    for release in releases:
        tree.link(f"/lib/modules/{release}/build", f"/usr/src/linux-headers-{release}")
    return tree


def test_a_converged_host_that_is_to_go_to_dkms(tmp_path: Path) -> None:
    report = look(headers(strix_halo(tmp_path), GOOD_KERNEL), DKMS)
    assert report.decision is None
    (found,) = [item for item in report.findings if item.id == "dkms-breaks-kernel"]
    assert found.severity == "error" and f"6.19.0 does not build on the kernel {GOOD_KERNEL}" in found.found
    assert "31.30 or later" in found.remedy and f"remove linux-headers-{GOOD_KERNEL} first" in found.remedy
    stop = preflight.stop_reason(report)
    assert stop is not None and (stop.found, stop.remedy) == (found.found, found.remedy)
    # Nothing says "run site.yml" while that would be refused.
    assert {item.remedy for item in report.findings if item.id == "kernel-without-fix"} == {found.remedy}
    assert "no-decision" not in preflight.ids(report.findings)


def test_its_remedies_help(tmp_path: Path) -> None:
    tree = headers(strix_halo(tmp_path / "a"), GOOD_KERNEL)
    for wishes in (DKMS._replace(repository_version="31.30"), Wishes()):
        assert preflight.stop_reason(look(tree, wishes)) is None
    report = look(tree.remove(f"/lib/modules/{GOOD_KERNEL}/build"), DKMS)
    assert preflight.stop_reason(report) is None
    assert report.decision is not None and report.decision.kernel.release == MAINLINE


def test_a_kernel_that_is_to_stay(tmp_path: Path) -> None:
    report = look(strix_halo(tmp_path), DKMS._replace(kernel_source="keep"))
    stop = preflight.stop_reason(report)
    assert stop is not None and f"does not build on the kernel {GOOD_KERNEL}" in stop.found
    assert "linux-headers" not in stop.remedy


def converged_dkms(root: Path) -> Tree:
    tree = strix_halo(root, MAINLINE, GOOD_SIZES, "dkms").loaded("dkms", MAINLINE, "6.19.0")
    tree.dkms("6.19.0-2400000.24.04", built=[MAINLINE]).amd_source("31.20")
    status = "install ok installed"
    return tree.dpkg(
        {
            "amdgpu-dkms": ("1:6.19.0.31200000-2400000.24.04", status),
            "amdgpu-dkms-firmware": ("31.20.0.0.31200000-2400000.24.04", status),
        }
    )


def test_what_is_installed_is_not_built_again(tmp_path: Path) -> None:
    tree = headers(converged_dkms(tmp_path), MAINLINE, GOOD_KERNEL)
    for wishes in (DKMS, DKMS._replace(repository_exact=True), DKMS._replace(repository_version="31.20.0")):
        assert preflight.stop_reason(look(tree, wishes)) is None
    stop = preflight.stop_reason(
        look(headers(tree, "7.1.0-1-generic"), DKMS._replace(repository_version="31.30"))
    )
    assert stop is not None and "7.1.0-1" in stop.found and "Wait for a later release" in stop.remedy


@pytest.mark.parametrize("version", ["latest", "99.1"])
def test_what_nobody_knows_is_left_to_the_driver_layer(tmp_path: Path, version: str) -> None:
    tree = headers(strix_halo(tmp_path, MAINLINE), MAINLINE, "9.0.0-1-generic")
    assert preflight.stop_reason(look(tree, DKMS._replace(repository_version=version))) is None


def test_a_later_source_that_is_there_counts(tmp_path: Path) -> None:
    tree = headers(strix_halo(tmp_path, MAINLINE).amd_source("31.20"), MAINLINE, GOOD_KERNEL)
    assert preflight.stop_reason(look(tree, DKMS)) is not None
    tree.amd_source("31.30")
    assert preflight.stop_reason(look(tree, DKMS)) is None


def test_a_driver_that_works_and_stays_is_never_refused(tmp_path: Path) -> None:
    tree = radeon(tmp_path, "6.17.0-20-generic", "dkms").dkms_packages().dkms(built=["6.17.0-20-generic"])
    tree.amd_source("30.30.4")
    headers(tree, "6.17.0-20-generic", GOOD_KERNEL)
    assert preflight.stop_reason(look(tree, Wishes())) is None
