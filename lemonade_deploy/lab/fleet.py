# SPDX-License-Identifier: Apache-2.0
"""The lab as a whole: bring hosts up, run commands on them, reset and remove them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from . import inventory, keys, network, state
from .host import Host, furnish
from .network import Network
from .paths import state_dir
from .root import base_root
from .say import say, step
from .shell import Completed, LabUsageError, check_machine, run
from .state import HostRecord, LabState


class Lab:
    """The simulated hosts of this machine."""

    def __init__(self) -> None:
        self.network = Network.current()

    @classmethod
    def open(cls) -> Lab:
        """The lab; LabUsageError without root or without the needed programs."""
        check_machine()
        return cls()

    @property
    def inventory_path(self) -> Path:
        """The inventory of the hosts that are up."""
        return inventory.path()

    def hosts(self) -> list[Host]:
        """All hosts, by name."""
        return [self._host(record) for record in state.load().hosts.values()]

    def host(self, name: str) -> Host:
        """A host by its name; LabUsageError names those that exist."""
        hosts = {host.record.name: host for host in self.hosts()}
        if name not in hosts:
            known = ", ".join(hosts) or "none; bring some up with `lemonade-deploy lab up`"
            raise LabUsageError(f"no lab host is called {name!r} (there: {known})")
        return hosts[name]

    def up(self, names: Sequence[str], profile: str = "strix-halo-dirty", engine: str = "vllm") -> None:
        """Make sure that the hosts *names* stand; those that exist already stay as they are."""
        with state.locked() as now:
            network.check_free(self.network)
            network.raise_sysctls(now)
            self.network.bring_up()
            fresh = [name for name in names if name not in now.hosts]
            for name in fresh:
                now.hosts[name] = HostRecord(name, now.free_index(), profile, engine)
                state.save(now)
            self._publish(now)
            for name in names:
                host = self._host(now.hosts[name])
                if name in fresh or not (host.folder / "lower.json").exists():
                    self._install(host)
                host.power_on()
            with step(f"booting {', '.join(names)}"):
                for name in names:
                    self._host(now.hosts[name]).wait_ready()

    def exec(self, name: str, argv: Sequence[str], stdin: str | None = None) -> Completed:
        """Run *argv* on a host as the user ``deploy``; its exit code is in the result."""
        return run(self.host(name).ssh([shlex.join(argv)]), check=False, stdin=stdin)

    def reset(self, name: str) -> None:
        """Give a host a fresh disk of its profile and boot it; address and host key stay."""
        with state.locked():
            host = self.host(name)
            host.remove()
            self._install(host)
            host.power_on()
            host.wait_ready()

    def down(self) -> None:
        """Remove all hosts and put back what the lab raised; fine where nothing is up."""
        with state.locked() as now:
            for record in list(now.hosts.values()):
                self._host(record).remove()
                del now.hosts[record.name]
                state.save(now)
            self.network.take_down()
            network.restore_sysctls(now)
            self._publish(now)
        say(f"down; keys and inventory stay in {state_dir()}, downloads and roots in the cache")

    def _host(self, record: HostRecord) -> Host:
        return Host(record, self.network)

    def _install(self, host: Host) -> None:
        host.folder.mkdir(parents=True, exist_ok=True)
        host.make_disk([base_root()])
        furnish(host, [], None)

    def _publish(self, now: LabState) -> None:
        keys.write_known_hosts(now, self.network)
        inventory.write(now, self.network)
