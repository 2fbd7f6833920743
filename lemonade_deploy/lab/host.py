# SPDX-License-Identifier: Apache-2.0
"""One simulated host: its overlay disk, its boot, its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import cgroup, keys
from .network import Network, end_all
from .paths import state_dir
from .shell import LabError, Process, reap, run
from .state import HostRecord, read_json, write_json

READY_TIMEOUT = 120.0  # seconds until ssh lets the user in


@dataclass(frozen=True)
class Host:
    """A host of the lab and the files that belong to it."""

    record: HostRecord
    network: Network

    @property
    def folder(self) -> Path:
        """Everything of this host."""
        return state_dir() / "hosts" / self.record.name

    @property
    def root(self) -> Path:
        """Where its disk is mounted."""
        return self.folder / "root"

    @property
    def view(self) -> Path:
        """What its firmware shows (see view.py)."""
        return self.folder / "view"

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return self.network.address(self.record)

    @property
    def control_group(self) -> str:
        """Name of its control group (see cgroup.py)."""
        return self.network.netns(self.record.name)

    @property
    def stop_file(self) -> Path:
        """Tells the starter not to boot again."""
        return self.folder / "stop"

    def ssh(self, argv: list[str], connect_seconds: int = 10) -> list[str]:
        """The argv that runs *argv* on the host (quoted for its shell by the caller)."""
        return [
            "ssh",
            "-o",
            f"ConnectTimeout={connect_seconds}",
            *keys.ssh_options(),
            f"{keys.USER}@{self.address}",
            *argv,
        ]

    # -- processes -------------------------------------------------------------------------

    def process(self, kind: str) -> Process | None:
        """The remembered process ``starter`` or ``nspawn``, alive or not."""
        return Process.load(read_json(self.folder / f"{kind}.json"))

    def remember(self, kind: str, pid: int) -> None:
        """Remember a process of this host."""
        write_json(self.folder / f"{kind}.json", Process.of(pid).dump())

    def running(self) -> bool:
        """Whether the host is powered on."""
        starter = self.process("starter")
        return starter is not None and starter.alive()

    # -- disk ------------------------------------------------------------------------------

    def make_disk(self, lower: list[Path]) -> None:
        """Mount a fresh disk over the layers *lower* (uppermost first); LabError when mounted."""
        if os.path.ismount(self.root):
            raise LabError(f"{self.record.name}: its disk is still mounted at {self.root}")
        upper, work = self.folder / "upper", self.folder / "work"
        for path in (upper, work):
            if path.exists():
                shutil.rmtree(path)
        for path in (upper, work, self.root):
            path.mkdir(parents=True, exist_ok=True)
        mount_overlay(self.root, lower, upper, work)
        write_json(self.folder / "lower.json", [str(path) for path in lower])

    def mount(self) -> None:
        """Mount the existing disk; does nothing where it is mounted."""
        if os.path.ismount(self.root):
            return
        lower = read_json(self.folder / "lower.json")
        mount_overlay(self.root, [Path(path) for path in lower], self.folder / "upper", self.folder / "work")

    # -- power -----------------------------------------------------------------------------

    def power_on(self) -> None:
        """Start the detached starter; does nothing where the host runs."""
        if self.running():
            return
        self.stop_file.unlink(missing_ok=True)
        self.network.plug_host(self.record)
        self.mount()
        with (self.folder / "starter.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "lemonade_deploy.lab.starter", self.record.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        self.remember("starter", child.pid)

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Wait until ssh runs a command as the lab's user; LabError with the log's end otherwise."""
        until = time.monotonic() + timeout
        while True:
            if run(self.ssh(["true"], connect_seconds=2), check=False).rc == 0:
                return
            if not self.running() or time.monotonic() > until:
                raise LabError(f"{self.record.name} does not come up; the end of its logs: {self.log_tail()}")
            time.sleep(0.2)

    def log_tail(self) -> str:
        """The last lines of what starter and console said."""
        lines: list[str] = []
        for name in ("starter.log", "console.log"):
            path = self.folder / name
            if path.exists():
                lines += path.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
        return "\n".join(lines) or "(empty)"

    def power_off(self) -> None:
        """End every process of the host at once, as pulling its plug does; idempotent."""
        if self.folder.exists():
            self.stop_file.touch()
        end_all(self.network.netns(self.record.name))
        for kind in ("nspawn", "starter"):
            process = self.process(kind)
            if process is not None and not process.wait(3):
                process.stop()
                reap(process.pid)

    def remove(self) -> None:
        """Power off and delete the disk and the namespace; idempotent, also after a crash."""
        self.power_off()
        unmount(self.root)
        cgroup.remove(self.control_group)
        self.network.unplug(self.network.netns(self.record.name))
        if self.folder.exists():
            shutil.rmtree(self.folder)


def mount_overlay(root: Path, lower: list[Path], upper: Path, work: Path) -> None:
    """Mount an overlay; *lower* from the uppermost layer to the base."""
    options = f"lowerdir={':'.join(map(str, lower))},upperdir={upper},workdir={work}"
    run(["mount", "-t", "overlay", "lemonade-lab", "-o", options, root])


def unmount(root: Path) -> None:
    """Unmount *root*, waiting shortly for its last users; LabError where it stays busy."""
    for _attempt in range(100):
        if not os.path.ismount(root):
            return
        if run(["umount", root], check=False).rc == 0:
            continue
        time.sleep(0.1)
    run(["umount", root])


def furnish(host: Host, hostnames: Sequence[str]) -> None:
    """Write what makes a fresh disk this host: its name and keys, and the names of the lab's servers."""
    root, name = host.root, host.record.name
    etc = root / "etc"
    (etc / "hostname").write_text(name + "\n", encoding="utf-8")
    lines = ["127.0.0.1 localhost", f"127.0.1.1 {name}"]
    lines += [f"{host.network.services_address} {served}" for served in hostnames]
    (etc / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (etc / "resolv.conf").unlink(missing_ok=True)
    (etc / "resolv.conf").write_text("# a lab host has no name server\n", encoding="utf-8")
    (etc / "machine-id").write_text(uuid.uuid4().hex + "\n", encoding="utf-8")
    key = keys.host_key(name)
    target = etc / "ssh/ssh_host_ed25519_key"
    target.touch(mode=0o600)
    target.write_bytes(key.read_bytes())
    target.with_name(target.name + ".pub").write_text(keys.public(key) + "\n", encoding="utf-8")
    home = root / "home" / keys.USER
    ids = home.stat()
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    authorized = ssh / "authorized_keys"
    authorized.write_text(keys.public(keys.client_key()) + "\n", encoding="utf-8")
    for path in (ssh, authorized):
        os.chown(path, ids.st_uid, ids.st_gid)
