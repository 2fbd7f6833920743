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
PLANTED = [
    (
        "amdgpu-repo-outdated",
        "echo 'deb [arch=amd64] http://mirror.example/pub/amdgpu/30.20/ubuntu noble main'"
        " > /etc/apt/sources.list.d/zz-odd.list",
        "rm /etc/apt/sources.list.d/zz-odd.list",
    ),
    (
        "dpkg-unfinished",
        f"{ZSTD} half-configured/' /var/lib/dpkg/status",
        f"{ZSTD} installed/' /var/lib/dpkg/status",
    ),
    (
        "amdgpu-blacklisted",
        "echo 'blacklist amdgpu' > /etc/modprobe.d/planted.conf",
        "rm /etc/modprobe.d/planted.conf",
    ),
]


@pytest.mark.parametrize(("finding", "plant", "undo"), PLANTED, ids=[row[0] for row in PLANTED])
def test_doctor_finds_what_we_plant(
    lab: Lab, fleet: dict[str, Any], finding: str, plant: str, undo: str
) -> None:
    def found() -> set[str]:
        ran = kit("doctor", "-i", str(lab.inventory_path), "-l", "it-dark", "--json")
        return {item["id"] for item in host_of(ran, "it-dark")["findings"]}

    assert finding not in found()
    assert lab.exec("it-dark", ["sudo", "sh", "-c", plant]).rc == 0
    try:
        assert finding in found()
    finally:
        assert lab.exec("it-dark", ["sudo", "sh", "-c", undo]).rc == 0
