# SPDX-License-Identifier: Apache-2.0
"""The lab's network: one bridge, one namespace a host, one for the servers; no way to the outside."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from .paths import state_dir
from .say import say
from .shell import LabError, LabUsageError, run
from .state import HostRecord, exclusive, load, read_json, write_json

# systemd in every host takes inotify instances; at the kernel's 128 about 29 hosts come up.
INOTIFY = "fs.inotify.max_user_instances"
INOTIFY_WANTED = 4096

# Whose networks stand and what was raised; gone with a reboot, like the networks and the values.
RUN = Path("/run/lemonade-lab")
MOST_LABS = 10  # 10.98.0.0/24 up to 10.107.0.0/24


@dataclass(frozen=True)
class Network:
    """Names and addresses. ``number`` lets labs of several state folders stand side by side."""

    number: int = 0

    @classmethod
    def current(cls) -> Network:
        """The network of the lab in this state folder: its own, the wanted one, or a free one.

        Raises LabError where none is free.
        """
        owners = _owners()
        for number, owner in owners.items():
            if owner == _me():
                return cls(number)
        wanted = load().network
        if wanted is None and "LEMONADE_LAB_NUMBER" in os.environ:
            wanted = int(os.environ["LEMONADE_LAB_NUMBER"])
        if wanted is not None:
            return cls(wanted)
        free = next((number for number in range(MOST_LABS) if number not in owners), None)
        if free is None:
            raise LabError(
                f"all {MOST_LABS} networks of labs are taken, by {', '.join(sorted(set(owners.values())))}: "
                "take one down with LEMONADE_LAB_DIR=<that folder> lemonade-deploy lab down"
            )
        return cls(free)

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
        """The bridge and the servers' namespace; does nothing where they stand.

        LabUsageError where another lab has this network, LabError where its addresses are in use.
        """
        self._claim()
        self._check_free()
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
            # The same hardware address every time, or neighbours would look for the old one for a while.
            mac = "02:4c:{:02x}:{:02x}:{:02x}:{:02x}".format(*map(int, address.split(".")))
            peer = ["peer", "name", "host0", "address", mac, "netns", netns]
            run(["ip", "link", "add", interface, "type", "veth", *peer])
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
        """Drop the bridge, the servers' namespace and left-over interfaces; put sysctls back."""
        if _owners().get(self.number, _me()) != _me():
            return
        self.unplug(self.services_netns)
        for link in Path("/sys/class/net").glob(f"ll{self.number}-*"):
            run(["ip", "link", "del", link.name], check=False)
        if Path(f"/sys/class/net/{self.bridge}").exists():
            run(["ip", "link", "del", self.bridge])
        with exclusive(RUN / "lock", "changes the labs' networks"):
            self._claim_file.unlink(missing_ok=True)
            if not _owners():
                _restore_sysctls()

    @property
    def _claim_file(self) -> Path:
        return RUN / f"network-{self.number}"

    def _claim(self) -> None:
        with exclusive(RUN / "lock", "changes the labs' networks"):
            owner = _owners().get(self.number)
            if owner not in (None, _me()):
                raise LabUsageError(
                    f"network {self.number} belongs to the lab in {owner};"
                    " leave LEMONADE_LAB_NUMBER away or choose another one"
                )
            self._claim_file.write_text(_me(), encoding="utf-8")
            _raise_sysctls()

    def _check_free(self) -> None:
        routes = run(["ip", "-4", "route", "show", f"{self.prefix}.0/24"]).stdout.splitlines()
        others = [line for line in routes if f"dev {self.bridge}" not in line]
        if others:
            raise LabError(
                f"{self.prefix}.0/24 is in use here ({others[0].strip()}); set LEMONADE_LAB_NUMBER"
                f" to another number below {MOST_LABS}"
            )


def pids_in(netns: str) -> list[int]:
    """Processes of this machine that live in a namespace."""
    if not Path(f"/run/netns/{netns}").exists():
        return []
    return [int(pid) for pid in run(["ip", "netns", "pids", netns]).stdout.split()]


def end_all(netns: str, patience: float = 30) -> None:
    """SIGKILL what lives in a namespace, and who comes meanwhile.

    Raises LabError after *patience* seconds.
    """
    until = time.monotonic() + patience
    while pids := pids_in(netns):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise LabError(f"{netns}: processes that do not end: {pids}")
        time.sleep(0.05)


def _sysctl(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")


def _raise_sysctls() -> None:
    """Raise what many systemd hosts need; say it and remember it for :func:`_restore_sysctls`."""
    path = _sysctl(INOTIFY)
    before = path.read_text(encoding="utf-8").strip()
    if int(before) >= INOTIFY_WANTED:
        return
    raised: dict[str, str] = read_json(RUN / "sysctls.json") or {}
    write_json(RUN / "sysctls.json", {INOTIFY: before, **raised})
    path.write_text(str(INOTIFY_WANTED), encoding="utf-8")
    say(f"raised sysctl {INOTIFY} from {before} to {INOTIFY_WANTED}; `lab down` puts it back")


def _restore_sysctls() -> None:
    """Put back what the first lab raised."""
    raised: dict[str, str] = read_json(RUN / "sysctls.json") or {}
    for name, value in raised.items():
        _sysctl(name).write_text(value, encoding="utf-8")
        say(f"put sysctl {name} back to {value}")
    (RUN / "sysctls.json").unlink(missing_ok=True)


def _me() -> str:
    return str(state_dir().resolve())


def _owners() -> dict[int, str]:
    """Networks that are taken: number -> state folder of their lab."""
    claims = {int(path.name.rpartition("-")[2]): path for path in RUN.glob("network-*")}
    return {number: claims[number].read_text(encoding="utf-8") for number in sorted(claims)}
