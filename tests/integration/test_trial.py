# SPDX-License-Identifier: Apache-2.0
"""Kernels that do not work: each box ends on its old kernel by itself, and the run says why.

One run over five simulated hosts; what is wrong with a kernel is planted by a hook that runs after the
kernel's installation, or by a unit that acts while the host goes down for the trial boot.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.ansible_env import environment
from lemonade_deploy.content import content_root
from lemonade_deploy.lab import Lab

from .kit import Ran, boot_id, host_of, kit

pytestmark = pytest.mark.lab

OLD, OEM = "6.14.0-37-generic", "6.17.0-1033-oem"
HOSTS = {
    "tr-panic": "strix-halo-dirty",
    "tr-missing": "strix-halo-dirty",
    "tr-nonet": "strix-halo-dirty",
    "tr-unproven": "strix-halo-dirty",
    "tr-clean": "strix-halo-clean",
}
# Only where the timer is what is tested: on a busy machine 30 s are over before a proof is.
PATIENCE = "{{ 30 if inventory_hostname == 'tr-nonet' else 900 }}"
LAYERS = "amdgpu_driver,kernel,gpu_memory,activate"


def sudo(lab: Lab, host: str, script: str) -> str:
    done = lab.exec(host, ["sudo", "sh", "-c", script])
    assert done.rc == 0, done.stderr
    return done.stdout


def spoil(lab: Lab, host: str, text: str) -> None:
    """Have the image of the next kernel say *text*, which the simulated machine obeys."""
    path = "/etc/kernel/postinst.d/zzz-planted"
    lines = f'#!/bin/sh\\ncase "$1" in {OEM}) printf "{text}" >> "$2" ;; esac\\n'
    sudo(lab, host, f"printf '{lines}' > {path}; chmod 755 {path}")


def remove_while_going_down(lab: Lab, host: str, path: str) -> None:
    """After every check, and before the boot."""
    unit = f"[Service]\\nType=oneshot\\nRemainAfterExit=yes\\nExecStop=/bin/rm -f {path}\\n"
    sudo(lab, host, f"printf '{unit}' > /run/systemd/system/planted.service; systemctl start planted")


def run(lab: Lab, *hosts: str) -> Ran:
    return kit(
        *("site.yml", "-i", str(lab.inventory_path), "-l", ",".join(hosts), "-t", LAYERS, "--json"),
        *("-e", "kernel_source=oem", "-e", json.dumps({"kernel_confirm_timeout": PATIENCE})),
    )


@pytest.fixture(scope="module")
def tried(lab: Lab) -> dict[str, Any]:
    """Every host after the one run."""
    lab.up_all(HOSTS, "light")
    spoil(lab, "tr-panic", "lab: panics")
    spoil(lab, "tr-nonet", "lab: no network")
    remove_while_going_down(lab, "tr-missing", f"/boot/vmlinuz-{OEM}")
    ran = run(lab, *HOSTS)
    return {name: host_of(ran, name) for name in HOSTS}


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("tr-panic", "GRUB took the entry, and nothing of that boot is left"),
        ("tr-missing", f"/boot/vmlinuz-{OEM} is not there, so that GRUB could not load it"),
        ("tr-nonet", "it came up .* but nobody confirmed it in time, so the host rebooted itself"),
        ("tr-unproven", f"with the old register size.*the box was booted back into {re.escape(OLD)}"),
    ],
)
def test_a_kernel_that_does_not_work_ends_on_the_old_one_with_the_reason(
    lab: Lab, tried: dict[str, Any], host: str, why: str
) -> None:
    end = tried[host]
    assert (end["status"], end["failure"]["layer"]) == ("failed", "activate")
    assert re.search(why, end["failure"]["message"]), end["failure"]["message"]
    assert end["failure"]["remedy"]
    assert end["rebooted"] is True
    assert lab.exec(host, ["uname", "-r"]).stdout.strip() == OLD
    env = sudo(lab, host, "grub-editenv list")
    assert f"gnulinux-{OLD}-advanced" in env, "the next plain boot is the old one, too"
    assert "next_entry=lemonade" not in env
    command_line = lab.exec(host, ["cat", "/proc/cmdline"]).stdout
    assert "panic=" not in command_line and "lemonade_deploy.trial" not in command_line
    assert "lemonade-deploy-trial" not in sudo(lab, host, "ls /etc/systemd/system")


def test_a_kernel_that_was_tried_twice_is_left_with_what_to_do(lab: Lab, tried: dict[str, Any]) -> None:
    assert "try 1 of 2" in tried["tr-panic"]["failure"]["message"]
    marker = "/var/lib/lemonade-deploy/activation-due.json"
    sudo(lab, "tr-panic", f'grep -q \'"tries": 1\' {marker} && sed -i \'s/"tries": 1/"tries": 2/\' {marker}')
    before = boot_id(lab, "tr-panic")
    third = host_of(run(lab, "tr-panic"), "tr-panic")
    assert "was booted 2 times and never proved itself" in third["failure"]["message"]
    assert "kernel_version" in third["failure"]["remedy"]
    assert boot_id(lab, "tr-panic") == before, "no third boot"


def test_a_converged_host_costs_four_tasks(lab: Lab, tried: dict[str, Any], tmp_path: Path) -> None:
    """Preflight, driver, kernel and activate together, as Ansible itself counts."""
    assert tried["tr-clean"]["failure"] is None, tried["tr-clean"]["failure"]
    argv = [Path(sys.executable).parent / "ansible-playbook", content_root() / "playbooks/site.yml"]
    tags = "preflight,amdgpu_driver,kernel,activate"
    done = subprocess.run(
        [*argv, "-i", lab.inventory_path, "-l", "tr-clean", "-t", tags],
        env={**os.environ, **environment(tmp_path, tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    recap = re.search(r"^tr-clean +: ok=(\d+) +changed=(\d+).*failed=(\d+)", done.stdout, re.MULTILINE)
    assert recap is not None, done.stdout[-3000:] + done.stderr[-1000:]
    assert recap.groups() == ("4", "0", "0"), done.stdout


def test_no_role_of_plain_ansible_takes_a_wrong_value_to_a_host(
    lab: Lab, tried: dict[str, Any], tmp_path: Path
) -> None:
    argv = [Path(sys.executable).parent / "ansible-playbook", content_root() / "playbooks/site.yml"]
    done = subprocess.run(
        [*argv, "-i", lab.inventory_path, "-l", "tr-clean", "-e", "verify_timeout=soon"],
        env={**os.environ, **environment(tmp_path, tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"ok=0 +changed=0 .*failed=1", done.stdout), done.stdout
    assert "verify_timeout" in done.stdout + done.stderr
