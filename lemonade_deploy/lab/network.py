# SPDX-License-Identifier: Apache-2.0
"""The lab's network: one bridge, one namespace a host, one for the servers; no way to the outside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .say import say
from .shell import LabError, run
from .state import HostRecord, LabState

# systemd in every host takes inotify instances; at the kernel's 128 about 29 hosts come up.
INOTIFY = "fs.inotify.max_user_instances"
INOTIFY_WANTED = 4096


@dataclass(frozen=True)
class Network:
    """Names and addresses. ``number`` (LEMONADE_LAB_NUMBER) lets several labs stand side by side."""

    number: int = 0

    @classmethod
    def current(cls) -> Network:
        """The network of this lab."""
        return cls(int(os.environ.get("LEMONADE_LAB_NUMBER") or 0))

    @property
    def prefix(self) -> str:
        """First three bytes of every address."""
        return f"10.{98 + self.number}.0"

    @property
    def bridge(self) -> str:
        """The bridge on this machine."""
        return f"lemonlab{self.number}"

    @property
    def services_address(self) -> str:
        """Where the lab's servers listen."""
        return f"{self.prefix}.2"

    @property
    def services_netns(self) -> str:
        """Namespace of the lab's servers."""
        return f"lemonlab{self.number or ''}-svc"

    def netns(self, name: str) -> str:
        """Namespace of a host."""
        return f"lemonlab{self.number or ''}-host-{name}"

    def address(self, host: HostRecord) -> str:
        """IPv4 address of a host."""
        return f"{self.prefix}.{16 + host.index}"

    def bring_up(self) -> None:
        """The bridge and the servers' namespace; does nothing where they stand."""
        if not Path(f"/sys/class/net/{self.bridge}").exists():
            run(["ip", "link", "add", self.bridge, "type", "bridge"])
            run(["ip", "addr", "add", f"{self.prefix}.1/24", "dev", self.bridge])
        run(["ip", "link", "set", self.bridge, "up"])
        self.plug(self.services_netns, f"ll{self.number}-svc", self.services_address)

    def plug(self, netns: str, interface: str, address: str) -> None:
        """A namespace with the interface ``host0`` at *address*, its other end in the bridge."""
        if not Path(f"/run/netns/{netns}").exists():
            run(["ip", "netns", "add", netns])
        if not Path(f"/sys/class/net/{interface}").exists():
            run(["ip", "link", "add", interface, "type", "veth", "peer", "name", "host0", "netns", netns])
            run(["ip", "-n", netns, "addr", "add", f"{address}/24", "dev", "host0"])
        run(["ip", "link", "set", interface, "master", self.bridge, "up"])
        for device in ("host0", "lo"):
            run(["ip", "-n", netns, "link", "set", device, "up"])

    def plug_host(self, host: HostRecord) -> None:
        """The namespace of a host."""
        self.plug(self.netns(host.name), f"ll{self.number}-{host.index}", self.address(host))

    def unplug(self, netns: str) -> None:
        """Drop a namespace and with it its interface; fine where there is none."""
        if Path(f"/run/netns/{netns}").exists():
            run(["ip", "netns", "del", netns])

    def take_down(self) -> None:
        """Drop the bridge, the servers' namespace and left-over interfaces."""
        self.unplug(self.services_netns)
        for link in Path("/sys/class/net").glob(f"ll{self.number}-*"):
            run(["ip", "link", "del", link.name], check=False)
        if Path(f"/sys/class/net/{self.bridge}").exists():
            run(["ip", "link", "del", self.bridge])


def pids_in(netns: str) -> list[int]:
    """Processes of this machine that live in a namespace."""
    if not Path(f"/run/netns/{netns}").exists():
        return []
    return [int(pid) for pid in run(["ip", "netns", "pids", netns]).stdout.split()]


def _sysctl(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")


def raise_sysctls(state: LabState) -> None:
    """Raise what many systemd hosts need; remember and say it."""
    path = _sysctl(INOTIFY)
    before = path.read_text(encoding="utf-8").strip()
    if int(before) >= INOTIFY_WANTED:
        return
    state.raised.setdefault(INOTIFY, before)
    path.write_text(str(INOTIFY_WANTED), encoding="utf-8")
    say(f"raised sysctl {INOTIFY} from {before} to {INOTIFY_WANTED}; `lab down` puts it back")


def restore_sysctls(state: LabState) -> None:
    """Put the remembered values back."""
    for name, value in state.raised.items():
        _sysctl(name).write_text(value, encoding="utf-8")
        say(f"put sysctl {name} back to {value}")
    state.raised.clear()


def check_free(network: Network) -> None:
    """LabError where the lab's address range is already in use on this machine by something else."""
    routes = run(["ip", "-4", "route", "show", f"{network.prefix}.0/24"]).stdout.splitlines()
    others = [line for line in routes if f"dev {network.bridge}" not in line]
    if others:
        raise LabError(
            f"{network.prefix}.0/24 is in use here ({others[0].strip()}); set LEMONADE_LAB_NUMBER=1"
        )
