# SPDX-License-Identifier: Apache-2.0
"""What stops a run before anything is touched, and what a report only tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from preflight_look import look
from trees import AMD_LINE, GOOD_KERNEL, OLD_VGPR_SIZES, bare, dark, dirty, strix_halo

from lemonade_deploy.domain import disk, preflight
from lemonade_deploy.domain.decision import Wishes

pytestmark = pytest.mark.usefixtures("plenty_of_space")


def test_little_space_stops_a_run_but_not_where_the_bundle_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _host, path: disk.GIB if path != "/boot" else disk.MIB)
    tree = strix_halo(tmp_path)
    report = look(tree)
    assert [(item.id, item.severity) for item in report.findings] == [
        ("disk-space", "error"),
        ("disk-space", "warning"),
    ]
    assert preflight.stop_reason(report) is not None
    assert report.decision is not None
    tree.file(f"/opt/lemonade-deploy/vllm-rocm/{report.decision.release.tag}/x")
    assert [item.source for item in look(tree).findings] == ["/boot"]


def test_free_space_is_asked_of_the_nearest_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    tree = bare(tmp_path).file("/opt/x")
    assert disk.nearest(tree.host, "/opt/lemonade-deploy/vllm-rocm") == "/opt"
    assert disk.free_bytes(tree.host, "/opt/lemonade-deploy") > 0


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("cwsr-old-vgpr", OLD_VGPR_SIZES),
        ("cwsr-wrong", (19185665, 16384)),
        ("cwsr-wrong", (10**15 + 1, 10**15)),
        ("cwsr-wrong", (0, 0)),
        ("cwsr-missing", None),
    ],
)
def test_odd_numbers_of_a_kernel_with_the_fix_are_told_once(
    tmp_path: Path, name: str, sizes: tuple[int, int] | None
) -> None:
    report = look(strix_halo(tmp_path, GOOD_KERNEL, sizes))
    assert preflight.ids(report.findings) == [name, "kernel-without-fix"]
    # Every remedy is one that helps: a run is refused, with the same words.
    stop = preflight.stop_reason(report)
    assert stop is not None and f"kernel {GOOD_KERNEL} should carry the CWSR fix" in stop.found
    for found in report.findings:
        assert "reinstall the modules" in found.remedy and found.remedy in stop.remedy
        assert "site.yml" not in found.remedy


def test_a_host_that_could_not_fall_back_is_refused_only_where_a_kernel_is_needed(tmp_path: Path) -> None:
    btrfs = "24 1 0:27 / / rw shared:1 - btrfs /dev/nvme0n1p2 rw\n"
    report = look(dirty(tmp_path / "a").file("/proc/self/mountinfo", btrfs))
    reason = preflight.stop_reason(report)
    assert reason is not None and "btrfs" in reason.found
    assert "boot-no-fallback" in {item.id for item in report.findings}
    assert preflight.stop_reason(look(strix_halo(tmp_path / "b").file("/proc/self/mountinfo", btrfs))) is None


def test_stop_reasons(tmp_path: Path) -> None:
    assert preflight.stop_reason(look(strix_halo(tmp_path / "a"))) is None
    assert preflight.stop_reason(look(dirty(tmp_path / "b"))) is None
    assert preflight.stop_reason(look(dark(tmp_path / "c"))) is None
    stop = preflight.stop_reason(look(bare(tmp_path / "d")))
    assert stop is not None and stop.remedy
    report = look(strix_halo(tmp_path / "e"), Wishes(release="latest"))
    assert report.decision is None and preflight.ids(report.findings) == ["no-decision"]


def test_no_driver_is_taken_from_unclear_sources(tmp_path: Path) -> None:
    wishes = Wishes(policy="dkms", repository_version="31.30")
    wrong = strix_halo(tmp_path / "a").amd_source("31.30").distribution("ubuntu", "22.04", "jammy")
    stop = preflight.stop_reason(look(wrong, wishes))
    assert stop is not None and "needs jammy" in stop.found
    assert "Change noble to jammy in /etc/apt/sources.list.d/amdgpu.list line 1" in stop.remedy
    twice = strix_halo(tmp_path / "b").amd_source("31.30")
    twice.file("/etc/apt/sources.list.d/amd.list", AMD_LINE.format("31.30"))
    stop = preflight.stop_reason(look(twice, wishes))
    assert stop is not None and "Keep one" in stop.remedy
    assert preflight.stop_reason(look(twice)) is None, "the kernel's own driver needs none of them"


def test_a_pinned_mainline_kernel_under_secure_boot(tmp_path: Path) -> None:
    report = look(strix_halo(tmp_path).secure_boot(), Wishes(kernel_version="6.18.20-061820-generic"))
    assert "secure-boot-unsigned-kernel" in preflight.ids(report.findings)


def test_an_impossible_version_is_told_once(tmp_path: Path) -> None:
    report = look(strix_halo(tmp_path).amd_source("31.20"), Wishes(repository_version="newest"))
    assert "no-decision" in preflight.ids(report.findings)


def test_known_bad_bundle(tmp_path: Path) -> None:
    report = look(strix_halo(tmp_path), Wishes(release="vllm0.20.1-rocm7.12.0"))
    assert preflight.ids(report.findings) == ["rocm-kernel-pair", "bundle-known-bad"]
