# SPDX-License-Identifier: Apache-2.0
"""Every finding: planted in a fixture tree, found under its id, with file and line."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from trees import (
    AMD_LINE,
    GOOD_KERNEL,
    GOOD_SIZES,
    OLD_KERNEL,
    OLD_VGPR_SIZES,
    PIN,
    Tree,
    bare,
    dark,
    dirty,
    radeon,
    strix_halo,
)

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


def two_sources(root: Path) -> Tree:
    tree = strix_halo(root).amd_source("31.20")
    return tree.file("/etc/apt/sources.list.d/rocm.list", "# x\n" + AMD_LINE.format("31.40.1"))


def unsigned(root: Path) -> Tree:
    tree = strix_halo(root, "6.18.20-061820-generic", GOOD_SIZES, "dkms").dkms_packages().secure_boot()
    return tree.dkms(built=["6.18.20-061820-generic"])


def mes(root: Path, version: str = "0x00000083") -> Tree:
    device = "/sys/class/drm/card0/device"
    tree = strix_halo(root).file(f"{device}/uevent", "PCI_SLOT_NAME=0000:c5:00.0\n")
    tree.file(f"{device}/mem_info_vram_total", "1\n")
    return tree.file(f"{device}/fw_version/mes_fw_version", f"{version}\n")


def due(root: Path) -> Tree:
    tree = strix_halo(root).file("/proc/sys/kernel/random/boot_id", "abc\n")
    marker = {"initramfs": True, "reboot": ["the driver was removed"], "boot_id": "abc"}
    return tree.file("/var/lib/lemonade-deploy/activation-due.json", json.dumps(marker))


Build = Callable[[Path], Tree]


# (id, severity, a text that `found` must contain, host)
def mes_in_debugfs(root: Path) -> Tree:
    tree = strix_halo(root).file(
        "/sys/kernel/debug/dri/1/name", "amdgpu dev=0000:c5:00.0 unique=0000:c5:00.0\n"
    )
    text = (
        "MES_KIQ feature version: 6, fw version: 0x0000006f\nMES feature version: 1, fw version: 0x00000083\n"
    )
    return tree.file("/sys/kernel/debug/dri/1/amdgpu_firmware_info", text)


def passed_through(root: Path) -> Tree:
    tree = bare(root).pci(0x1586, kind=0x038000).module(GOOD_KERNEL, "in-tree")
    return tree.link("/sys/bus/pci/devices/0000:c5:00.0/driver", "../../../bus/pci/drivers/vfio-pci")


PLANTED: list[tuple[str, str, str, Build]] = [
    ("no-supported-gpu", "error", "No AMD GPU is on the PCI bus", bare),
    ("no-supported-gpu", "error", "Navi 21 (gfx1030)", lambda r: bare(r).pci(0x73BF)),
    ("gpu-without-driver", "error", "/etc/modprobe.d/blacklist-amdgpu.conf line 2", dark),
    ("gpu-without-driver", "error", "has no amdgpu module", lambda r: bare(r).pci(0x1586)),
    (
        "gpu-without-driver",
        "error",
        "it is bound to vfio-pci",
        lambda r: (
            bare(r).pci(0x1586).link("/sys/bus/pci/devices/0000:c5:00.0/driver", "../../drivers/vfio-pci")
        ),
    ),
    ("gpu-unlisted", "info", "7fff", lambda r: bare(r).pci(0x7FFF)),
    (
        "gpu-mismatch",
        "warning",
        "gfx1100",
        lambda r: strix_halo(r).kfd_gpu(1, 110000, 0x1586, 80, GOOD_SIZES),
    ),
    ("gpu-mismatch", "warning", "KFD node 1", lambda r: bare(r).kfd_gpu(1, 110501, 1, 80, GOOD_SIZES)),
    ("gpu-families-mixed", "info", "Navi 31", lambda r: radeon(r).pci(0x1586, "0000:c4:00.0")),
    (
        "driver-unknown",
        "error",
        "/updates/amdgpu.ko.zst",
        lambda r: strix_halo(r).module(GOOD_KERNEL, "foreign"),
    ),
    ("cwsr-missing", "error", "cwsr_size and ctl_stack_size", lambda r: strix_halo(r, OLD_KERNEL, None)),
    ("cwsr-missing", "info", "cwsr_size", lambda r: radeon(r).kfd_gpu(1, 110000, 0x744C, 192, None)),
    ("cwsr-old-vgpr", "error", "13942784", lambda r: strix_halo(r, OLD_KERNEL, OLD_VGPR_SIZES)),
    ("cwsr-wrong", "error", "1234", lambda r: strix_halo(r, OLD_KERNEL, (1234, 16384))),
    ("cwsr-wrong", "error", "no CU count", lambda r: strix_halo(r).kfd_gpu(1, 110501, 0x1586, 0, GOOD_SIZES)),
    ("cwsr-above-formula", "info", "19189760", lambda r: strix_halo(r, sizes=(19189760, 16384))),
    ("dkms-masks-driver", "error", "6.16.13", dirty),
    ("dkms-inactive", "warning", "1:6.16.13", lambda r: strix_halo(r).dkms_packages()),
    ("dkms-build-failed", "error", "build/make.log", dark),
    (
        "dkms-stale-tree",
        "error",
        "no source/dkms.conf",
        lambda r: strix_halo(r).dkms_packages().dkms(source=False),
    ),
    ("dkms-stale-tree", "error", "no installed package", lambda r: strix_halo(r).dkms()),
    ("dkms-unsigned-secure-boot", "error", "updates/dkms/amdgpu.ko.zst", unsigned),
    ("amdgpu-repo-outdated", "error", "/etc/apt/sources.list.d/amdgpu.list line 1", dirty),
    ("amdgpu-repo-outdated", "info", "30.30, wanted 31.20", lambda r: strix_halo(r).amd_source()),
    (
        "amdgpu-repo-suite",
        "warning",
        "needs jammy",
        lambda r: strix_halo(r).amd_source().distribution("ubuntu", "22.04"),
    ),
    (
        "amdgpu-repo-suite",
        "error",
        "needs jammy",
        lambda r: dirty(r).distribution("ubuntu", "22.04", "jammy"),
    ),
    ("amdgpu-repo-duplicate", "warning", "rocm.list line 2", two_sources),
    ("amdgpu-repo-duplicate", "error", "rocm.list line 2", lambda r: two_sources(r).dkms_packages()),
    (
        "amdgpu-repo-duplicate",
        "warning",
        "amd.list line 2",
        lambda r: strix_halo(r).file("/etc/apt/sources.list.d/amd.list", AMD_LINE.format("31.20") * 2),
    ),
    (
        "apt-key-unusable",
        "error",
        "/etc/apt/keyrings/amdrocm.gpg: is not there",
        lambda r: strix_halo(r).file(
            "/etc/apt/sources.list.d/rocm.list",
            "deb [signed-by=/etc/apt/keyrings/amdrocm.gpg] https://repo.amd.com/rocm/packages stable main\n",
        ),
    ),
    (
        "driver-unknown",
        "error",
        "built by DKMS for othergpu/1.0",
        lambda r: strix_halo(r, origin="dkms").file(
            f"/var/lib/dkms/othergpu/1.0/{GOOD_KERNEL}/x86_64/module/amdgpu.ko.zst"
        ),
    ),
    ("driver-unknown", "error", "0000:c5:00.0 is bound to vfio-pci", passed_through),
    ("apt-key-unusable", "error", "/etc/apt/keyrings/rocm.gpg: is not there", dirty),
    (
        "apt-key-unusable",
        "error",
        "cannot be read",
        lambda r: dirty(r).file("/etc/apt/keyrings/rocm.gpg", b"<html>404</html>"),
    ),
    (
        "apt-pin-missing",
        "warning",
        "no pin prefers",
        lambda r: dirty(r).remove("/etc/apt/preferences.d/repo-radeon-pin-600"),
    ),
    (
        "apt-pin-missing",
        "warning",
        "does nothing",
        lambda r: dirty(r).file(
            "/etc/apt/preferences.d/repo-radeon-pin-600", PIN.replace("\n", "\\n") + "\n"
        ),
    ),
    (
        "apt-pin-missing",
        "warning",
        "no pin prefers",
        lambda r: dirty(r).file(
            "/etc/apt/preferences.d/repo-radeon-pin-600",
            PIN.replace("release o=repo.radeon.com", 'origin ""'),
        ),
    ),
    ("dpkg-unfinished", "error", "amdgpu-dkms 1:6.16.13.30300000-2278356.24.04 is half-configured", dark),
    ("dpkg-unfinished", "error", "journal", lambda r: strix_halo(r).file("/var/lib/dpkg/updates/0001", "x")),
    ("amdgpu-blacklisted", "error", "blacklist-amdgpu.conf line 2: blacklist amdgpu", dark),
    (
        "amdgpu-blacklisted",
        "error",
        "line 1: install amdgpu /bin/false",
        lambda r: strix_halo(r).file("/etc/modprobe.d/x.conf", "install amdgpu /bin/false\n"),
    ),
    ("cmdline-trap", "error", "nomodeset", lambda r: strix_halo(r).kernel(GOOD_KERNEL, "quiet nomodeset")),
    (
        "cmdline-trap",
        "error",
        "modprobe.blacklist=radeon,amdgpu",
        lambda r: strix_halo(r).kernel(GOOD_KERNEL, "modprobe.blacklist=radeon,amdgpu"),
    ),
    (
        "cmdline-trap",
        "warning",
        "amdgpu.cwsr_enable=0",
        lambda r: strix_halo(r).kernel(GOOD_KERNEL, "amdgpu.cwsr_enable=0"),
    ),
    (
        "modprobe-option",
        "warning",
        "/etc/modprobe.d/x.conf line 2: options amdgpu gttsize=1 cwsr_enable=0: compute wave",
        lambda r: strix_halo(r).file(
            "/etc/modprobe.d/x.conf", "# x\noptions amdgpu gttsize=1 cwsr_enable=0\n"
        ),
    ),
    (
        "modprobe-option",
        "error",
        "does not set up its hardware",
        lambda r: strix_halo(r).file("/etc/modprobe.d/x.conf", "options amdgpu modeset=0\n"),
    ),
    ("kernel-without-fix", "error", OLD_KERNEL, dirty),
    (
        "kernel-without-fix",
        "warning",
        "6.17.0-1033-oem",
        lambda r: strix_halo(r, "6.17.0-1033-oem", None, "dkms").dkms_packages(),
    ),
    (
        "reboot-pending",
        "warning",
        "srcversion OTHER",
        lambda r: strix_halo(r).file("/sys/module/amdgpu/srcversion", "OTHER\n"),
    ),
    ("reboot-pending", "warning", "the driver was removed", due),
    ("firmware-mes", "error", "0x83", mes),
    ("firmware-mes", "error", "0x83", mes_in_debugfs),
    (
        "firmware-mes",
        "error",
        "/lib/firmware/updates/amdgpu/gc_11_5_1_mes_2.bin outranks",
        lambda r: mes(r).file("/lib/firmware/updates/amdgpu/gc_11_5_1_mes_2.bin"),
    ),
    (
        "firmware-shadow",
        "warning",
        "/lib/firmware/updates/amdgpu",
        lambda r: strix_halo(r).file("/lib/firmware/updates/amdgpu/gc_11_5_1_mes1.bin"),
    ),
    (
        "secure-boot-unsigned-kernel",
        "error",
        "6.18.20-061820-generic",
        lambda r: strix_halo(r, "6.18.20-061820-generic").secure_boot(),
    ),
    ("service-user-no-gpu-access", "error", "not in group video", lambda r: strix_halo(r).users(["render"])),
    (
        "service-user-no-gpu-access",
        "error",
        "/dev/kfd is closed",
        lambda r: strix_halo(r).users().file("/dev/kfd"),
    ),
    (
        "config-overridden",
        "warning",
        "/var/lib/lemonade/config.json line 4: port is 8000, ours is 13305",
        lambda r: strix_halo(r).lemond({"port": 13305, "vllm": {"args": ""}}, {"a": 1, "b": 2, "port": 8000}),
    ),
    (
        "config-overridden",
        "warning",
        'vllm.rocm_bin is "builtin"',
        lambda r: strix_halo(r).lemond(
            {"vllm": {"rocm_bin": "/x"}},
            {"vllm": {"rocm_bin": "builtin"}},
            "/var/lib/lemonade/.cache/lemonade/config.json",
        ),
    ),
    (
        "hsa-override",
        "warning",
        "/etc/environment line 2: HSA_OVERRIDE_GFX_VERSION=11.0.0",
        lambda r: strix_halo(r).file("/etc/environment", "PATH=/bin\nHSA_OVERRIDE_GFX_VERSION=11.0.0\n"),
    ),
    (
        "hsa-override",
        "warning",
        "lemond.service.d/x.conf line 2: HSA_OVERRIDE_GFX_VERSION=11.0.0",
        lambda r: strix_halo(r).file(
            "/etc/systemd/system/lemond.service.d/x.conf",
            '[Service]\nEnvironment="TOKEN=secret" "HSA_OVERRIDE_GFX_VERSION=11.0.0"\n',
        ),
    ),
    (
        "hsa-override",
        "warning",
        "/srv/gpu.env line 1: HSA_OVERRIDE_GFX_VERSION=",
        lambda r: (
            strix_halo(r)
            .file("/run/systemd/system/lemond.service", "[Service]\nEnvironmentFile=-/srv/gpu.env\n")
            .file("/srv/gpu.env", "HSA_OVERRIDE_GFX_VERSION=\n")
        ),
    ),
    (
        "hsa-override",
        "warning",
        "setenv HSA_OVERRIDE_GFX_VERSION 11.0.0",
        lambda r: strix_halo(r).file("/etc/csh.cshrc", "setenv HSA_OVERRIDE_GFX_VERSION 11.0.0\n"),
    ),
    (
        "hsa-override",
        "warning",
        "pam_env.conf line 1",
        lambda r: strix_halo(r).file(
            "/etc/security/pam_env.conf", "HSA_OVERRIDE_GFX_VERSION DEFAULT=11.0.0\n"
        ),
    ),
]


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
