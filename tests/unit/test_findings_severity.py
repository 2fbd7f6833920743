# SPDX-License-Identifier: Apache-2.0
"""How grave a finding is follows from what was decided, and what is said can be acted upon."""

from __future__ import annotations

from pathlib import Path

import pytest
from preflight_look import look
from trees import GOOD_KERNEL, GOOD_SIZES, dirty, radeon, strix_halo

from lemonade_deploy.domain.decision import Wishes
from lemonade_deploy.domain.findings import Finding
from lemonade_deploy.domain.preflight import Report

pytestmark = pytest.mark.usefixtures("plenty_of_space")


def only(report: Report, kind: str) -> Finding:
    (found,) = [item for item in report.findings if item.id == kind]
    return found


def test_an_old_repository_matters_only_where_the_driver_comes_from_it(tmp_path: Path) -> None:
    """AMD's driver is installed in all of these; what counts is which one is decided."""
    in_tree = only(look(dirty(tmp_path / "a")), "amdgpu-repo-outdated")
    assert in_tree.severity == "info" and in_tree.remedy.startswith("Nothing: ")
    asked = only(look(dirty(tmp_path / "b"), Wishes(policy="dkms")), "amdgpu-repo-outdated")
    assert asked.severity == "error" and "site.yml` on this host: it switches the source" in asked.remedy
    kept = radeon(tmp_path / "c", origin="dkms").dkms_packages().amd_source()
    found = only(look(kept), "amdgpu-repo-outdated")
    assert found.severity == "warning" and "stays as it is" in found.remedy


@pytest.mark.parametrize(
    ("kernel", "release", "severity", "said"),
    [
        (
            "6.17.0-22-generic",
            "vllm0.19.0-rocm7.11.0",
            "warning",
            "by AMD's table kernel 6.17.0-22-generic with ROCm 7.11.0 may fail",
        ),
        (
            GOOD_KERNEL,
            "vllm0.19.0-rocm7.13.0",
            "warning",
            f"ROCm 7.13.0 is newer than AMD's table, which says nothing of it with kernel {GOOD_KERNEL}; "
            "with ROCm 7.11.0, the newest in the table, this kernel works",
        ),
        (
            "6.17.0-22-generic",
            "vllm0.19.0-rocm7.13.0",
            "warning",
            "with ROCm 7.11.0, the newest in the table, this kernel may fail",
        ),
        (
            GOOD_KERNEL,
            "vllm0.19.0-rocm7.5.0",
            "warning",
            f"AMD's table does not name ROCm 7.5.0, so it says nothing of it with kernel {GOOD_KERNEL}",
        ),
    ],
)
def test_kernel_and_rocm_are_told_in_words(
    tmp_path: Path, kernel: str, release: str, severity: str, said: str
) -> None:
    report = look(strix_halo(tmp_path, kernel, GOOD_SIZES), Wishes(release=release))
    found = only(report, "rocm-kernel-pair")
    assert (found.severity, said in found.found) == (severity, True), found.found
    assert "Nothing, while models load" in found.remedy and "kernel_version" in found.remedy
