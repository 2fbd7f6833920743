# SPDX-License-Identifier: Apache-2.0
"""Runs beside each simulated host: derives what its firmware shows, boots it, and does so again at a reboot.

``python -m lemonade_deploy.lab.starter HOST``
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from . import cgroup, firmware, state
from .grubmenu import Stuck
from .host import Host
from .network import Network
from .say import say

REBOOT = 133  # systemd-nspawn --keep-unit ends so at a reboot of the host


def argv(host: Host, network: bool = True) -> list[str]:
    """The systemd-nspawn command of a host; without *network* it gets an empty one of its own."""
    view = host.view
    wire = f"--network-namespace-path=/run/netns/{host.network.netns(host.record.name)}"
    command = [
        *("systemd-nspawn", "--quiet", "--boot", "--keep-unit", "--register=no"),
        *("--directory", str(host.root), "--machine", f"lemonlab-{host.record.name}"),
        wire if network else "--private-network",
        *("--capability=CAP_NET_ADMIN,CAP_NET_RAW", "--resolv-conf=off", "--timezone=off"),
        *("--link-journal=no", "--console=pipe"),
        # systemd enforces DeviceAllow by a BPF program; nspawn refuses the call otherwise, and a unit
        # that forgets the GPU's node would work here and nowhere else.
        "--system-call-filter=bpf",
        # Writable, so that wrong numbers can be planted until the next boot.
        f"--bind={view}/class:/sys/class",
        f"--bind={view}/module:/sys/module",
        f"--bind={view}/pci:/sys/bus/pci/devices",
        f"--bind-ro={view}/proc:/run/lemonade-lab",
    ]
    for node in sorted((view / "dev").rglob("*")):
        if not node.is_dir():
            command.append(f"--bind={node}:/dev/{node.relative_to(view / 'dev')}")
    return command


def boot_once(host: Host) -> int:
    """One boot, from the firmware to the power being off; returns nspawn's exit code."""
    try:
        boot = firmware.boot(host)
    except Stuck as stuck:
        say(f"{host.record.name}: never comes up: {stuck}")
        wait_for_the_plug(host)
        return 0
    for reset in boot.resets:
        say(f"{host.record.name}: resets itself after a failed boot: {reset}")
    say(f"{host.record.name}: boots {boot.entry or 'without a kernel of its own'} — {boot.reason}")
    with (host.folder / "console.log").open("ab") as console:
        child = subprocess.Popen(
            cgroup.inside(host.control_group, argv(host, boot.network)),
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )
        host.remember("nspawn", child.pid)
        return child.wait()


def wait_for_the_plug(host: Host) -> None:
    """A machine that hangs stays powered on until somebody pulls the plug."""
    while not host.stop_file.exists():
        time.sleep(0.2)


def main() -> int:
    """Boot the named host until it powers off."""
    record = state.load().hosts[sys.argv[1]]
    host = Host(record, Network.current())
    while not host.stop_file.exists():
        code = boot_once(host)
        if code != REBOOT:
            say(f"{record.name}: powered off (code {code})")
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
