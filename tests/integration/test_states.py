# SPDX-License-Identifier: Apache-2.0
"""Other states a box can be in, with the light engine: dkms policy, dark, no GPU, and what doctor finds."""

from __future__ import annotations

from typing import Any

import pytest

from lemonade_deploy.lab import Lab

from .kit import changed, host_of, kit

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def fleet(lab: Lab, light_hosts: list[str]) -> dict[str, Any]:
    """One run over a mixed inventory: dark converges, the host without a GPU fails alone."""
    ran = kit("site.yml", "-i", str(lab.inventory_path), "-l", "it-dark,it-nogpu", "--json")
    assert ran.rc == 1
    return {name: host_of(ran, name) for name in ("it-dark", "it-nogpu")}


def test_a_dark_box_converges(fleet: dict[str, Any]) -> None:
    host = fleet["it-dark"]
    assert host["failure"] is None, host["failure"]
    assert host["status"] == "changed"
    assert [(gpu["driver"], gpu["cwsr"]) for gpu in host["gpu"]] == [("in-tree", "ok")]
    assert host["inference"]["completion_tokens"] > 0


def test_a_host_without_a_gpu_fails_alone_and_says_why(fleet: dict[str, Any]) -> None:
    host = fleet["it-nogpu"]
    assert host["status"] == "failed"
    assert host["changed"] == []
    assert host["failure"]["layer"] == "preflight"
    assert "GPU" in host["failure"]["message"]
    assert host["failure"]["remedy"]


def test_dkms_policy_switches_the_repository_and_proves_the_driver(lab: Lab, light_hosts: list[str]) -> None:
    run = (
        "site.yml",
        "-i",
        str(lab.inventory_path),
        "-l",
        "it-dkms",
        "--json",
        "-e",
        "amdgpu_driver_policy=dkms",
    )
    predicted = kit(*run, "--check")
    ran = kit(*run)
    host = host_of(ran, "it-dkms")
    assert (ran.rc, host["failure"]) == (0, None)
    assert changed(host) == changed(host_of(predicted, "it-dkms"))
    source = lab.exec("it-dkms", ["cat", "/etc/apt/sources.list.d/amdgpu.list"]).stdout
    assert "amdgpu/31.20/ubuntu noble main" in source
    # Commented lines stay as they are.
    assert not [line for line in source.splitlines() if "30.30" in line and not line.startswith("#")]
    versions = lab.exec(
        "it-dkms", ["dpkg-query", "-W", "-f", "${Version}\n", "amdgpu-dkms", "amdgpu-dkms-firmware"]
    )
    driver, firmware = versions.stdout.split()
    assert driver.startswith("1:6.19.0.")
    assert driver.split("-")[-1] == firmware.split("-")[-1], "one build"
    assert [(gpu["driver"], gpu["cwsr"], gpu["cwsr_size"]) for gpu in host["gpu"]] == [
        ("dkms", "ok", 19185664)
    ]
    again = kit(*run)
    assert (again.rc, host_of(again, "it-dkms")["changed"]) == (0, [])


ZSTD = "sed -i '/^Package: zstd$/,/^$/s/^Status: .*/Status: install ok"
ODD_SOURCE = "deb [arch=amd64] http://mirror.example/pub/amdgpu/31.20/ubuntu jammy main"
PLANTED = [  # finding, the file it must name, how it is planted and taken back
    (
        "amdgpu-repo-suite",
        "/etc/apt/sources.list.d/zz-odd.list",
        f"echo '{ODD_SOURCE}' > /etc/apt/sources.list.d/zz-odd.list",
        "rm /etc/apt/sources.list.d/zz-odd.list",
    ),
    (
        "dpkg-unfinished",
        "zstd",
        f"{ZSTD} half-configured/' /var/lib/dpkg/status",
        f"{ZSTD} installed/' /var/lib/dpkg/status",
    ),
    (
        "amdgpu-blacklisted",
        "/etc/modprobe.d/planted.conf",
        "echo 'blacklist amdgpu' > /etc/modprobe.d/planted.conf",
        "rm /etc/modprobe.d/planted.conf",
    ),
]


def found(lab: Lab, host: str) -> dict[str, str]:
    """What doctor finds on a host: id to text."""
    ran = kit("doctor", "-i", str(lab.inventory_path), "-l", host, "--json")
    return {item["id"]: f"{item['found']} {item['source']}" for item in host_of(ran, host)["findings"]}


@pytest.mark.parametrize(("finding", "named", "plant", "undo"), PLANTED, ids=[row[0] for row in PLANTED])
def test_doctor_finds_what_we_plant(
    lab: Lab, fleet: dict[str, Any], finding: str, named: str, plant: str, undo: str
) -> None:
    assert finding not in found(lab, "it-dark")
    assert lab.exec("it-dark", ["sudo", "sh", "-c", plant]).rc == 0
    try:
        findings = found(lab, "it-dark")
    finally:
        assert lab.exec("it-dark", ["sudo", "sh", "-c", undo]).rc == 0
    assert named in findings[finding]
