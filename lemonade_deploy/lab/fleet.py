# SPDX-License-Identifier: Apache-2.0
"""The lab as a whole: bring hosts up, run commands on them, reset and remove them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from lemonade_deploy.domain.gfx import FAMILIES

from . import cleanup, inventory, keys, servers, state
from .hardware import MACHINES
from .host import Host, furnish
from .layers import clear, layers
from .network import Network
from .paths import cache_dir, state_dir
from .profiles import DEFAULT_PROFILE, find
from .say import say, step
from .services.assembly import Services
from .shell import Completed, LabUsageError, check_machine, run
from .state import HostRecord, LabState

DEFAULT_FAMILY = "gfx1151"


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

    def up(self, names: Sequence[str], profile: str = DEFAULT_PROFILE, engine: str = "vllm") -> None:
        """Make sure that the hosts *names* stand; those that exist already stay as they are."""
        self.up_all(dict.fromkeys(names, profile), engine)

    def up_all(self, profiles: Mapping[str, str], engine: str = "vllm") -> None:
        """The same with a profile a host (host -> profile); boots all at once."""
        for profile in profiles.values():
            find(profile)
        with state.locked() as now:
            self.network.bring_up()
            now.network = self.network.number
            for name, profile in profiles.items():
                if name not in now.hosts:
                    now.hosts[name] = HostRecord(name, now.free_index(), profile, engine)
                    state.save(now)
            served = servers.make_archives()
            servers.start(now, self.network, served)
            # The engine mostly waits for the network, the root mostly for the processor.
            with ThreadPoolExecutor(1) as beside:
                engines = beside.submit(self._make_engines, now)
                for name in profiles:
                    self._install_once(self._host(now.hosts[name]), served)
                engines.result()
            self._publish(now, served)
            off = [name for name in profiles if not self._host(now.hosts[name]).running()]
            for name in off:
                self._host(now.hosts[name]).power_on()
            with step(f"booting {', '.join(off)}") if off else nullcontext():
                for name in profiles:
                    self._host(now.hosts[name]).wait_ready()

    def exec(self, name: str, argv: Sequence[str], stdin: str | None = None) -> Completed:
        """Run *argv* on a host as the user ``deploy``; its exit code is in the result."""
        return run(self.host(name).ssh([shlex.join(argv)]), check=False, stdin=stdin)

    def reset(self, name: str) -> None:
        """Give a host a fresh disk of its profile and boot it; address and host key stay."""
        host = self.host(name)
        with state.locked() as now:
            host.remove()
            self.network.bring_up()
            served = servers.make_archives()
            servers.start(now, self.network, served)
            self._install(host, served)
            host.power_on()
            with step(f"booting {name}"):
                host.wait_ready()

    def remove(self, *names: str) -> None:
        """Remove hosts; with the last one everything goes, as by :meth:`down`. Fine where they are gone."""
        with state.locked() as now:
            gone = [name for name in names if name in now.hosts]
            if gone:
                self._end(now, gone)
                self._publish(now, servers.make_archives())
            last = not now.hosts
        if last:
            self.down()

    def down(self, purge: bool = False) -> None:
        """Remove all hosts and put back what the lab raised; fine where nothing is up.

        ``purge`` also deletes keys, inventory, downloads and everything built.
        """
        with state.locked() as now:
            self._end(now, list(now.hosts))
            clear(self.network)
            servers.stop(now, self.network)
            self.network.take_down()
            now.network = None
            self.inventory_path.unlink(missing_ok=True)
        if not purge:
            cleanup.prune()
        else:
            cleanup.purge(state_dir())
        say("down" if purge else f"down; keys stay in {state_dir()}, downloads and roots in {cache_dir()}")

    def _end(self, now: LabState, names: Sequence[str]) -> None:
        """Remove hosts side by side: it is mostly waiting for the kernel."""
        with ThreadPoolExecutor(8) as several:
            ends = {name: several.submit(self._host(now.hosts[name]).remove) for name in names}
        for name, end in ends.items():
            end.result()
            del now.hosts[name]

    def _host(self, record: HostRecord) -> Host:
        return Host(record, self.network)

    def _make_engines(self, now: LabState) -> None:
        """Bundles and models of every engine in use, and the lock file for all of them."""
        families: dict[str, set[str]] = {}
        for host in now.hosts.values():
            wanted = {FAMILIES[gpu.gfx] for gpu in MACHINES[find(host.profile).hardware].gpus}
            families.setdefault(host.engine, set()).update(wanted or {DEFAULT_FAMILY})
        inventory.write_lock([servers.make_engine(name, sorted(found)) for name, found in families.items()])

    def _install_once(self, host: Host, served: Services) -> None:
        if not (host.folder / "lower.json").exists():
            self._install(host, served)

    def _install(self, host: Host, served: Services) -> None:
        host.folder.mkdir(parents=True, exist_ok=True)
        host.make_disk(layers(find(host.record.profile).recipe, self.network, served))
        furnish(host, served.hostnames)

    def _publish(self, now: LabState, served: Services) -> None:
        keys.write_known_hosts(now, self.network)
        inventory.write(now, self.network, served)
