# SPDX-License-Identifier: Apache-2.0
"""Other states a box can be in, with the light engine: dkms policy, dark, no GPU, other GPUs, doctor."""

from __future__ import annotations

import base64
import json
import shlex
import time
from typing import Any

import pytest

from lemonade_deploy.domain.paths import ACTIVATION_DUE
from lemonade_deploy.lab import Lab
from lemonade_deploy.lab.paths import cache_dir

from .kit import Ran, boot_id, changed, disk, host_of, kit

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


EXPIRED = "/etc/apt/keyrings/rocm.gpg"
PIN = "/etc/apt/preferences.d/repo-radeon-pin-600"
# What others wrote: AMD's repository with ROCm's number, a mirror of somebody else's, and a comment.
FOREIGN = (
    "deb [signed-by=/etc/apt/keyrings/rocm.gpg] https://repo.radeon.com/rocm/apt/7.2 noble main\n"
    "#deb https://repo.radeon.com/graphics/7.2/ubuntu noble main\n"
    "# deb [arch=amd64] https://repo.radeon.com/amdgpu/30.10/ubuntu noble main  \\t# old\n"
)
FOREIGN_FILE = "/etc/apt/sources.list.d/rocm.list"
APT_FILES = ["sh", "-c", "cd /etc/apt; find . -type f | sort | xargs sha256sum; stat -c '%n %a %U' $(find .)"]


def driver_run(lab: Lab, host: str, *more: str) -> Ran:
    """The layers up to the driver, under policy dkms."""
    policy = ("-e", "amdgpu_driver_policy=dkms")
    tags = ("--tags", "amdgpu_driver")
    return kit("site.yml", "-i", str(lab.inventory_path), "-l", host, "--json", *policy, *tags, *more)


@pytest.fixture(scope="module")
def rotten_apt(lab: Lab, light_hosts: list[str]) -> str:
    """A host whose key has expired, whose pin is gone, with sources of others beside."""
    expired = (cache_dir() / "services" / "keys" / "amd-expired.gpg").read_bytes()
    planted = (
        f"echo {base64.b64encode(expired).decode()} | base64 -d > {EXPIRED}; rm {PIN};"
        f"printf '%b' {shlex.quote(FOREIGN)} > {FOREIGN_FILE}"
    )
    assert lab.exec("it-dkms", ["sudo", "sh", "-c", planted]).rc == 0
    return "it-dkms"


def test_doctor_tells_what_is_wrong_with_apt(lab: Lab, rotten_apt: str) -> None:
    ran = kit("doctor", "-i", str(lab.inventory_path), "-l", rotten_apt, "--json")
    host = host_of(ran, rotten_apt)
    findings = {item["id"]: item["found"] for item in host["findings"]}
    assert "has expired" in findings["apt-key-unusable"]
    assert "no pin prefers" in findings["apt-pin-missing"]
    key = next(key for key in host["facts"]["keys"] if key["path"] == EXPIRED)
    assert key["state"] == "expired" and key["expires"] < time.time()
    assert len([entry for entry in host["facts"]["apt"] if entry["file"] == FOREIGN_FILE]) == 3
    assert host["facts"]["boot_loader"]["default"] == "6.14.0-37-generic"
    assert host["facts"]["gpu"][0]["support"] == "validated"


REFUSED = [  # extra variables, and words of the message and of the remedy
    (
        # A folder that the server answers with 404.
        ("amdgpu_driver_repo_version=30.30.2", "amdgpu_driver_repo_exact=true"),
        "amdgpu/30.30.2/ubuntu/dists/noble/InRelease",
        "no such version",
    ),
    (
        # 31.20 is made for kernels up to 6.19.
        ("kernel_version=7.0.0-31-generic",),
        "AMD's DKMS builds on kernels up to 6.19",
        "kernel_version",
    ),
]


@pytest.mark.parametrize(("wishes", "told", "remedy"), REFUSED, ids=["404", "does-not-build"])
def test_what_cannot_work_is_refused_and_leaves_every_file(
    lab: Lab, rotten_apt: str, wishes: tuple[str, ...], told: str, remedy: str
) -> None:
    before = lab.exec(rotten_apt, APT_FILES).stdout
    ran = driver_run(lab, rotten_apt, *(word for wish in wishes for word in ("-e", wish)))
    host = host_of(ran, rotten_apt)
    assert (ran.rc, host["changed"]) == (1, [])
    assert told in host["failure"]["message"]
    assert remedy in host["failure"]["remedy"]
    assert lab.exec(rotten_apt, APT_FILES).stdout == before


def test_dkms_policy_switches_the_repository_and_proves_the_driver(lab: Lab, rotten_apt: str) -> None:
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
    upper = lab.host("it-dkms").folder / "upper"
    before = disk(upper)
    predicted = kit(*run, "--check")
    assert disk(upper) == before, "asking AMD's server for a key and a release writes nothing"
    ran = kit(*run)
    host = host_of(ran, "it-dkms")
    assert (ran.rc, host["failure"]) == (0, None)
    assert changed(host) == changed(host_of(predicted, "it-dkms"))
    # The key was fetched again and the pin written; what is others' is what it was.
    assert {
        ("amdgpu_driver", f"apt key {EXPIRED}", "refresh"),
        ("amdgpu_driver", "apt pin repo.radeon.com", "write"),
    } <= changed(host)
    assert lab.exec("it-dkms", ["cat", FOREIGN_FILE]).stdout == FOREIGN.replace("\\t", "\t")
    policy = lab.exec("it-dkms", ["apt-cache", "policy", "rocminfo"]).stdout
    assert "Candidate: 1.0.0" in policy, "the pin lets AMD's repository win by priority, not by version"
    source = lab.exec("it-dkms", ["cat", "/etc/apt/sources.list.d/amdgpu.list"]).stdout
    assert "amdgpu/31.20/ubuntu noble main" in source
    # A commented line stays as it is.
    assert [line for line in source.splitlines() if "30.30" in line] == [source.splitlines()[1]]
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


def test_a_driver_that_only_waits_is_purged_without_a_reboot(lab: Lab, light_hosts: list[str]) -> None:
    name = "it-inactive"
    before = boot_id(lab, name)
    run = ("site.yml", "-i", str(lab.inventory_path), "-l", name, "--json", "--tags", "amdgpu_driver")
    ran = kit(*run)
    host = host_of(ran, name)
    assert (ran.rc, host["failure"]) == (0, None)
    assert ("amdgpu_driver", "package amdgpu-dkms", "purge") in changed(host)
    # The kernel's own module runs already: the initramfs is due, and no boot.
    due = json.loads(lab.exec(name, ["sudo", "cat", ACTIVATION_DUE]).stdout)
    assert (due["initramfs"], due["reboot"]) == (True, [])
    assert boot_id(lab, name) == before
    gone = "ls -d /var/lib/dkms/amdgpu /lib/firmware/updates/amdgpu /lib/modules/*/updates/dkms/amdgpu.ko*"
    assert lab.exec(name, ["sh", "-c", f"{gone} 2>/dev/null"]).stdout == ""
    again = kit("doctor", *run[1:6])
    host = host_of(again, name)
    assert host["decision"]["driver"]["state"] == "in-tree-good"
    assert [(gpu["driver"], gpu["cwsr"]) for gpu in host["gpu"]] == [("in-tree", "ok")]


def test_a_build_that_breaks_is_told_and_the_next_run_repairs_it(lab: Lab, light_hosts: list[str]) -> None:
    name = "it-inactive"  # in order by now, on a kernel for which 31.30 builds
    lab.exec(
        name,
        [
            "sudo",
            "sh",
            "-c",
            "echo 'MAKE[0]=\"echo kcl.c:1: error: planted; false\"' > /etc/dkms/amdgpu.conf",
        ],
    )
    ran = driver_run(lab, name, "-e", "amdgpu_driver_repo_version=31.30")
    failure = host_of(ran, name)["failure"]
    assert "did not install" in failure["message"] and "kcl.c:1: error: planted" in failure["message"]
    assert "amdgpu_driver_policy: intree" in failure["remedy"]
    blacklist = "/etc/modprobe.d/blacklist-amdgpu.conf"
    assert lab.exec(name, ["test", "-e", blacklist]).rc == 1, "the next boot would have no GPU"
    assert {"dkms-build-failed", "dpkg-unfinished"} <= set(found(lab, name))
    ran = kit("site.yml", "-i", str(lab.inventory_path), "-l", name, "--json", "--tags", "amdgpu_driver")
    assert (ran.rc, host_of(ran, name)["failure"]) == (0, None)
    assert lab.exec(name, ["dpkg", "--audit"]).stdout == ""
    assert not {"dkms-build-failed", "dpkg-unfinished", "dkms-stale-tree"} & set(found(lab, name))


OTHERS = {  # host: profile, and what each GPU must be told as, the serving one first
    "it-point": ("strix-point", [("gfx1150", "gfx1150", True, 16, 5578752, 8192)]),
    "it-xtx": ("rdna3-7900xtx", [("gfx1100", "gfx110X", False, 96, 46047232, 40960)]),
    "it-xt": ("rdna4-9070xt", [("gfx1201", "gfx120X", False, 64, 30699520, 28672)]),
    "it-hybrid": (
        "hybrid",
        [("gfx1100", "gfx110X", False, 96, 46047232, 40960), ("gfx1150", "gfx1150", True, 16, 5578752, 8192)],
    ),
}


def test_other_gpus_are_told_apart(lab: Lab) -> None:
    lab.up_all({name: profile for name, (profile, _gpus) in OTHERS.items()}, "light")
    ran = kit("doctor", "-i", str(lab.inventory_path), "-l", ",".join(OTHERS), "--json")
    for name, (_profile, gpus) in OTHERS.items():
        host = host_of(ran, name)
        seen = [
            (
                *(gpu[key] for key in ("gfx", "family", "apu", "cu_count", "cwsr_size", "ctl_stack_size")),
                gpu["cwsr"],
                gpu["support"],
            )
            for gpu in host["facts"]["gpu"]
        ]
        assert seen == [(*gpu, "ok", "published") for gpu in gpus], name
        assert host["decision"]["release"]["family"] == gpus[0][1]
        assert host["decision"]["driver"] == {
            "policy": "intree",
            "origin": "in-tree",
            "state": "in-tree-good",
        }
        mixed = "gpu-families-mixed" in {item["id"] for item in host["findings"]}
        assert mixed is (len(gpus) > 1)


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


def test_doctor_finds_what_we_plant(lab: Lab, fleet: dict[str, Any]) -> None:
    assert not {row[0] for row in PLANTED} & set(found(lab, "it-dark"))
    assert lab.exec("it-dark", ["sudo", "sh", "-c", " && ".join(row[2] for row in PLANTED)]).rc == 0
    try:
        findings = found(lab, "it-dark")
    finally:
        assert lab.exec("it-dark", ["sudo", "sh", "-c", " && ".join(row[3] for row in PLANTED)]).rc == 0
    for finding, named, _plant, _undo in PLANTED:
        assert named in findings[finding]
