# SPDX-License-Identifier: Apache-2.0
"""The lab itself, on hosts that really boot: what a reboot shows follows from the disk."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from lemonade_deploy.lab import Lab, LabError
from lemonade_deploy.lab.network import INOTIFY_WANTED, pids_in

from .kit import kit

pytestmark = pytest.mark.lab

DARK, SPARE = "it-lab-dark", "it-lab-spare"
OLD, NEW = "6.14.0-37-generic", "7.0.0-31-generic"


@pytest.fixture(scope="module")
def hosts(lab: Lab) -> Iterator[Lab]:
    """A dark host (two kernels, a blacklist) and one without a GPU."""
    lab.remove(DARK, SPARE)
    lab.up_all({DARK: "strix-halo-dark", SPARE: "no-gpu"}, "light")
    yield lab
    lab.remove(DARK, SPARE)


def sh(lab: Lab, name: str, script: str, rc: int = 0) -> str:
    """Run a shell script as root on a host; its output."""
    done = lab.exec(name, ["sudo", "sh", "-ec", script])
    assert done.rc == rc, f"{script}: code {done.rc}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def reboot(lab: Lab, name: str) -> None:
    """Reboot a host from inside and wait until it is another boot."""
    before = sh(lab, name, "cat /proc/sys/kernel/random/boot_id")
    lab.exec(name, ["sudo", "systemctl", "reboot"])
    until = time.monotonic() + 60
    while True:
        done = lab.exec(name, ["cat", "/proc/sys/kernel/random/boot_id"])
        if done.rc == 0 and done.stdout.strip() != before:
            return
        assert time.monotonic() < until, lab.host(name).log_tail()
        time.sleep(0.2)


def test_a_host_is_a_real_system_with_ubuntus_face(hosts: Lab) -> None:
    assert sh(hosts, DARK, "systemctl is-system-running --wait; systemctl --failed --no-legend") == "running"
    release = sh(hosts, DARK, ". /etc/os-release; echo $ID $VERSION_CODENAME; echo $PRETTY_NAME")
    assert release.splitlines()[0] == "ubuntu noble"
    assert "simulated" in release
    assert "CPU(s)" in sh(hosts, DARK, "lscpu")  # the rest of /sys is the machine's
    assert "archive.ubuntu.com" in sh(hosts, DARK, "apt-get update")
    assert sh(hosts, DARK, "ip route show default") == ""
    assert sh(hosts, DARK, "curl -s -o /dev/null -w '%{http_code}' https://github.com/none") == "404"


def test_dark_means_a_pci_device_and_nothing_else(hosts: Lab) -> None:
    assert sh(hosts, DARK, "uname -r; cat /proc/sys/kernel/osrelease").split() == [NEW, NEW]
    assert "1002:1586" in sh(hosts, DARK, "lspci -nn")
    sh(hosts, DARK, "test ! -e /dev/kfd && test ! -e /sys/class/kfd && test ! -e /sys/module/amdgpu")
    assert "amdgpu-dkms" in sh(hosts, DARK, "dpkg --audit")
    report = json.loads(kit("lab", "list", "--json").stdout)["hosts"]
    assert (report[DARK]["driver"], report[SPARE]["driver"]) == ("none", "none")
    assert "blacklist-amdgpu.conf" in report[DARK]["reason"]
    assert report[SPARE]["reason"] == "no AMD GPU on the bus"
    assert sh(hosts, SPARE, "lspci -nn | grep -c 1002:", rc=1) == "0"


def test_one_boot_into_the_old_kernel_by_grubs_own_tools(hosts: Lab) -> None:
    """It stays dark there: the blacklist is in every initramfs."""
    sh(
        hosts,
        DARK,
        f"""
        sed -i 's/^GRUB_DEFAULT=.*/GRUB_DEFAULT=saved/' /etc/default/grub; update-grub
        advanced=$(sed -n "s/^submenu.*option '\\([^']*\\)'.*/\\1/p" /boot/grub/grub.cfg)
        menu=/boot/grub/grub.cfg
        id() {{ sed -n "s/^.menuentry.*option '\\(gnulinux-$1-advanced[^']*\\)'.*/\\1/p" $menu; }}
        grub-set-default "$advanced>$(id {NEW})"; grub-reboot "$advanced>$(id {OLD})"
        """,
    )
    reboot(hosts, DARK)
    assert sh(hosts, DARK, "uname -r") == OLD
    assert "next_entry=\n" in sh(hosts, DARK, "grub-editenv list; echo end") + "\n"
    assert OLD in sh(hosts, DARK, "cat /proc/cmdline")
    reboot(hosts, DARK)
    assert sh(hosts, DARK, "uname -r") == NEW


def test_the_driver_comes_with_the_next_initramfs(hosts: Lab) -> None:
    sh(hosts, DARK, "rm /etc/modprobe.d/blacklist-amdgpu.conf")
    sh(hosts, DARK, "echo 'options ttm pages_limit=2000000' > /etc/modprobe.d/gtt.conf")
    sh(hosts, DARK, f"update-initramfs -u -k {NEW}")
    sh(hosts, DARK, "test ! -e /sys/class/kfd")  # before the boot nothing changes
    reboot(hosts, DARK)
    properties = sh(hosts, DARK, "cat /sys/class/kfd/kfd/topology/nodes/1/properties").splitlines()
    assert {"cwsr_size 19185664", "ctl_stack_size 16384", "gfx_target_version 110501"} <= set(properties)
    assert sh(hosts, DARK, "cat /sys/module/ttm/parameters/pages_limit") == "2000000"
    assert sh(hosts, DARK, "cat /sys/class/drm/card0/device/mem_info_gtt_total") == str(2000000 * 4096)
    numbers = "/sys/class/kfd/kfd/topology/nodes/1/properties"
    sh(hosts, DARK, f"sed -i s/19185664/13942784/ {numbers}; grep -q 'cwsr_size 13942784' {numbers}")
    sh(hosts, DARK, "test -c /dev/kfd && test -c /dev/dri/renderD128 && test ! -e /sys/module/amdgpu/version")


def test_a_missing_kernel_never_comes_up_and_reset_gives_a_fresh_disk(hosts: Lab) -> None:
    host = hosts.host(SPARE)
    key = sh(hosts, SPARE, "cat /etc/ssh/ssh_host_ed25519_key.pub")
    sh(hosts, SPARE, "touch /root/mark; rm /boot/vmlinuz-*")
    hosts.exec(SPARE, ["sudo", "systemctl", "reboot"])
    with pytest.raises(LabError, match=r"(?s)does not come up.*not found"):
        host.wait_ready(8)
    report = json.loads(kit("lab", "list", "--json").stdout)["hosts"][SPARE]
    assert report["state"] == "stuck"
    hosts.reset(SPARE)
    sh(hosts, SPARE, "test ! -e /root/mark")
    assert sh(hosts, SPARE, "cat /etc/ssh/ssh_host_ed25519_key.pub") == key
    assert hosts.host(SPARE).address == host.address


def test_hosts_do_not_share_control_groups(hosts: Lab) -> None:
    """Stopping a service on one host must not end the same one on the other."""
    for name in (DARK, SPARE):
        sh(hosts, name, "systemd-run --quiet --unit=probe sleep 1000; systemctl is-active probe")
    sh(hosts, DARK, "systemctl kill --signal=KILL probe; systemctl stop probe")
    assert sh(hosts, SPARE, "systemctl is-active probe") == "active"


def test_the_command_returns_what_the_host_returned(hosts: Lab) -> None:
    assert kit("lab", "exec", SPARE, "--", "sh", "-c", "exit 7").rc == 7
    done = kit("lab", "exec", SPARE, "--", "printf", "%s|", "a b", "$c", "'")
    assert (done.rc, done.stdout) == (0, "a b|$c|'|")
    missing = kit("lab", "exec", "it-lab-none", "--", "true")
    assert (missing.rc, missing.stderr.count("\n")) == (64, 1)
    assert kit("lab", "inventory").stdout.strip() == str(hosts.inventory_path)


def test_removal_works_after_the_starter_was_killed(hosts: Lab) -> None:
    host = hosts.host(SPARE)
    for kind in ("starter", "nspawn"):
        process = host.process(kind)
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(5)
    assert not host.running()
    hosts.remove(SPARE)
    assert not host.folder.exists()
    assert pids_in(host.network.netns(SPARE)) == []
    hosts.up([SPARE], "no-gpu", "light")
    assert sh(hosts, SPARE, "hostname") == SPARE


def test_what_was_raised_is_said(hosts: Lab) -> None:
    with open("/proc/sys/fs/inotify/max_user_instances", encoding="ascii") as stream:
        assert int(stream.read()) >= INOTIFY_WANTED


@pytest.mark.full
def test_many_hosts_stand_at_once(lab: Lab) -> None:
    """More than the kernel's 128 inotify instances would let boot (about 29)."""
    names = [f"it-many-{number:02}" for number in range(40)]
    lab.up(names, "no-gpu", "light")
    try:
        assert {lab.exec(name, ["hostname"]).stdout.strip() for name in names} == set(names)
    finally:
        lab.remove(*names)
