# SPDX-License-Identifier: Apache-2.0
"""Every finding: planted in a fixture tree, found under its id, with file and line."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from planted import PLANTED, Build
from planted_boxes import mes
from trees import AMD_LINE, GOOD_KERNEL, OLD_VGPR_SIZES, Tree, bare, dark, dirty, radeon, strix_halo

from lemonade_deploy.domain import disk, paths, preflight
from lemonade_deploy.domain.decision import Wishes
from lemonade_deploy.domain.facts import Facts, read_facts
from lemonade_deploy.domain.findings import REGISTRY, Finding, finding
from lemonade_deploy.domain.kernel_choice import KernelCandidate
from lemonade_deploy.domain.kernels import Forecast
from lemonade_deploy.domain.preflight import Report

ROOT = Path(__file__).resolve().parents[2]
HWE = KernelCandidate(GOOD_KERNEL, ("linux-generic-hwe-24.04",), "hwe", Forecast("fixed", "x"))


# A ROCm that AMD's table of kernels names: any other one is told (rocm-kernel-pair).
LISTED = "vllm0.22.0-rocm7.11.0"


def look(tree: Tree, wishes: Wishes | None = None) -> Report:
    def ask(_facts: Facts, _wishes: Wishes) -> tuple[list[KernelCandidate], list[str]]:
        return [HWE], []

    return preflight.look(tree.host, read_facts(tree.host), wishes or Wishes(release=LISTED), ask, 20)


@pytest.fixture(autouse=True)
def _plenty_of_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _host, _path: 500 * disk.GIB)


@pytest.mark.parametrize(("name", "severity", "text", "build"), PLANTED)
def test_planted_things_are_found(tmp_path: Path, name: str, severity: str, text: str, build: Build) -> None:
    found = [item for item in look(build(tmp_path)).findings if item.id == name]
    assert [item for item in found if item.severity == severity and text in item.found], found
    assert all(item.remedy and item.source for item in found)


# What a box must not be blamed for.
GOOD: list[tuple[str, Build]] = [
    ("Strix Halo", strix_halo),
    ("the service's user", lambda r: strix_halo(r).users()),
    ("good MES firmware", lambda r: mes(r, "0x00000080")),
    ("an RX 7900 XTX", radeon),
    ("no reason to keep config.json", lambda r: strix_halo(r).lemond({"port": 1}, {"port": 1, "other": 2})),
    (
        "a broken config.json",
        lambda r: strix_halo(r).lemond({"port": 1}, {}).file("/var/lib/lemonade/config.json", "{"),
    ),
    (
        "a comment",
        lambda r: strix_halo(r).file("/etc/modprobe.d/x.conf", "# blacklist amdgpu\nblacklist amdgpux\n"),
    ),
    ("no .conf", lambda r: strix_halo(r).file("/etc/modprobe.d/x.conf.dpkg-old", "blacklist amdgpu\n")),
    (
        "empty sources",
        lambda r: strix_halo(r).file("/etc/apt/sources.list", "").file("/etc/apt/sources.list.d/a.list"),
    ),
    (
        "a disabled stanza",
        lambda r: strix_halo(r).file(
            "/etc/apt/sources.list.d/amdgpu.sources",
            "# old\nEnabled: no\nTypes: deb\nURIs: https://repo.radeon.com/amdgpu/30.30/ubuntu\n"
            "Suites: noble\nComponents: main\n",
        ),
    ),
    ("odd bytes", lambda r: strix_halo(r).file("/etc/apt/sources.list.d/x.list", b"\xff\xfe deb nonsense\n")),
    (
        "plain options",
        lambda r: strix_halo(r).file("/etc/modprobe.d/x.conf", "options amdgpu gttsize=1024\n"),
    ),
    (
        "an override that is taken away",
        lambda r: (
            strix_halo(r)
            .file("/etc/profile", "# HSA_OVERRIDE_GFX_VERSION=1\nunset HSA_OVERRIDE_GFX_VERSION\n")
            .file("/etc/systemd/system/lemond.service", "UnsetEnvironment=HSA_OVERRIDE_GFX_VERSION\n")
        ),
    ),
    (
        "another card that a guest has",
        lambda r: (
            strix_halo(r)
            .pci(0x744C, "0000:03:00.0")
            .link("/sys/bus/pci/devices/0000:03:00.0/driver", "../../../bus/pci/drivers/vfio-pci")
        ),
    ),
    ("no distribution of this kit's, all well", lambda r: strix_halo(r).distribution("fedora", "43", "")),
]


def test_facts_of_a_box_without_dpkg_and_apt(tmp_path: Path) -> None:
    tree = strix_halo(tmp_path).distribution("fedora", "43", "").remove("/var/lib/dpkg/status")
    report = look(tree)
    assert report.refusal is None
    assert report.facts.dpkg.packages == {}
    assert report.facts.apt.entries == ()


@pytest.mark.parametrize(("name", "build"), GOOD)
def test_a_good_box_is_not_blamed(tmp_path: Path, name: str, build: Build) -> None:
    assert [item.id for item in look(build(tmp_path)).findings] == [], name


def test_secrets_of_config_json_are_not_shown(tmp_path: Path) -> None:
    tree = strix_halo(tmp_path).lemond({"api_key": "a"}, {"api_key": "hunter2"})
    (found,) = look(tree).findings
    assert found.id == "config-overridden" and "hunter2" not in found.found


def test_secrets_are_left_out_wherever_they_stand(tmp_path: Path) -> None:
    tree = strix_halo(tmp_path).lemond({"vllm": {"args": ""}}, {"vllm": {"args": "--api-key hunter2"}})
    tree.file(
        "/etc/apt/sources.list.d/m.list", "deb https://me:hunter2@mirror/amdgpu/30.30/ubuntu noble main\n"
    )
    public = look(tree).public()
    assert {"config-overridden", "amdgpu-repo-outdated"} <= {item["id"] for item in public["findings"]}
    assert "hunter2" not in json.dumps(public) and "https://***@mirror/" in json.dumps(public)


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


def test_a_foreign_module_with_odd_numbers_stays_unknown(tmp_path: Path) -> None:
    report = look(strix_halo(tmp_path, sizes=None).module(GOOD_KERNEL, "foreign"))
    (unknown,) = [item for item in report.findings if item.id == "driver-unknown"]
    assert "no package owns" in unknown.remedy and "no-decision" not in preflight.ids(report.findings)


@pytest.mark.parametrize(("days", "severity"), [(0, "info"), (89, "info"), (90, "warning")])
def test_a_hold_is_told_with_its_age(tmp_path: Path, days: int, severity: str) -> None:
    since = int(time.time()) - days * 86400 - 60
    record = {"kernel": GOOD_KERNEL, "since": since, "packages": ["linux-generic"]}
    report = look(strix_halo(tmp_path).file(paths.KERNEL_HOLD, json.dumps(record)))
    (found,) = [item for item in report.findings if item.id == "kernel-hold"]
    assert (found.severity, f"{days} days" in found.found) == (severity, True)


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


def test_report_is_small_plain_json(tmp_path: Path) -> None:
    tree = dirty(tmp_path).file("/etc/apt/sources.list.d/\udcff.list", "x")
    tree.file(
        "/etc/apt/sources.list.d/odd.list", b"deb https://repo.radeon.com/amdgpu/30.30/ubuntu \xff main\n"
    )
    public = look(tree).public()
    text = json.dumps(public)
    assert "\\udcff" not in text.lower().replace("\\\\udcff", "")
    assert len(text) < 12000
    assert public["decision"]["driver"]["policy"] == "intree"


def test_unknown_kinds_are_no_findings() -> None:
    with pytest.raises(KeyError):
        finding("no-such-thing", "x", "y")
    assert isinstance(finding("disk-space", "x", "y"), Finding)


NAMED = (
    "gpu-without-driver",
    "no-supported-gpu",
    "cwsr-missing",
    "cwsr-old-vgpr",
    "cwsr-wrong",
    "dkms-masks-driver",
    "dkms-build-failed",
    "dkms-unsigned-secure-boot",
    "amdgpu-repo-outdated",
    "apt-key-unusable",
    "apt-pin-missing",
    "dpkg-unfinished",
    "amdgpu-blacklisted",
    "kernel-without-fix",
    "reboot-pending",
    "firmware-mes",
    "secure-boot-unsigned-kernel",
    "service-user-no-gpu-access",
    "disk-space",
    "config-overridden",
)


def test_every_promised_id_is_registered() -> None:
    assert set(NAMED) <= set(REGISTRY)


def test_documentation_equals_the_registry() -> None:
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    assert rows == [(k.id, k.severity, k.meaning, k.remedy) for k in REGISTRY.values()]


def test_every_kind_is_planted_above() -> None:
    elsewhere = {"disk-space", "bundle-known-bad", "bundle-unqualified", "no-decision", "dkms-breaks-kernel"}
    elsewhere |= {"kernel-unproven", "kernel-half-memory", "kernel-source-refused"}  # test_kernel_decision
    elsewhere |= {"rocm-kernel-pair", "rocm-kernel-refused"}
    elsewhere |= {"kernel-hold", "boot-no-fallback"}  # below
    assert {name for name, *_rest in PLANTED} | elsewhere == set(REGISTRY)
