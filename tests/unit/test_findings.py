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
from preflight_look import look
from trees import GOOD_KERNEL, dirty, radeon, strix_halo

from lemonade_deploy.domain import paths, preflight
from lemonade_deploy.domain.findings import REGISTRY, Finding, finding

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.usefixtures("plenty_of_space")


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
    age = f"for {days} days" if days else "since today"
    assert (found.severity, age in found.found) == (severity, True)
    assert bool(found.remedy) is (severity == "warning")  # a hold is as it should be


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
    # Of kernels on offer: test_kernel_search, test_backports, test_mainline.
    elsewhere |= {"kernel-unproven", "kernel-half-memory", "kernel-source-refused"}
    elsewhere |= {"rocm-kernel-pair", "rocm-kernel-refused"}
    elsewhere |= {"kernel-hold", "boot-no-fallback"}  # above, test_preflight_stops
    assert {name for name, *_rest in PLANTED} | elsewhere == set(REGISTRY)
