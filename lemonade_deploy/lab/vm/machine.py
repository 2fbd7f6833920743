# SPDX-License-Identifier: Apache-2.0
"""One running virtual machine: QEMU's process, its monitor, its snapshots, and ssh into the guest.

Emulated in software only: a nested /dev/kvm cannot be relied on. Ports are opened on 127.0.0.1 alone.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from ..shell import Completed, LabError, Process, run
from ..state import read_json, write_json
from .image import ERST_BYTES, HARDWARE, SNAPSHOT, Image

NAME = "vm"  # the guest's name in the inventory
RECORD = "process.json"  # QEMU's process, in the machine's folder


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def end_left(folder: Path) -> None:
    """End the QEMU of a killed run that used *folder*; fine where there is none."""
    left = Process.load(read_json(folder / RECORD))
    if left is not None:
        left.stop()
        (folder / RECORD).unlink()


@dataclass
class _Running:
    """What belongs to one QEMU process."""

    popen: subprocess.Popen[bytes]
    process: Process


class Machine:
    """A virtual machine in a folder of its own: disk, serial log, monitor, pid, known_hosts.

    A context manager: leaving it ends QEMU, whatever happened.
    """

    def __init__(self, image: Image, folder: Path, disk: Path | None = None) -> None:
        """*disk* is copied (default: the image's, with its snapshot)."""
        self.image = image
        self.folder = folder
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        end_left(folder)
        self.disk = folder / "disk.qcow2"
        run(["cp", "--reflink=auto", "--sparse=always", disk or image.disk, self.disk])
        self.serial_log.unlink(missing_ok=True)
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {image.host_key}\n", "utf-8")
        self._running: _Running | None = None

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def known_hosts(self) -> Path:
        """Names the guest's host key, which every connection checks."""
        return self.folder / "known_hosts"

    @property
    def serial_log(self) -> Path:
        """Everything the guest wrote to its serial console."""
        return self.folder / "serial.log"

    @property
    def _monitor(self) -> Path:
        return self.folder / "monitor"

    def start(self, snapshot: str | None = None) -> None:
        """Power on, or go on from *snapshot*. Raises LabError where QEMU ends at once."""
        self._monitor.unlink(missing_ok=True)
        erst = self.folder / "erst"
        argv = [
            *("qemu-system-x86_64", *HARDWARE),
            *("-drive", f"file={self.disk},if=virtio,cache=unsafe,discard=unmap"),
            *("-object", f"memory-backend-file,id=erst,mem-path={erst},size={ERST_BYTES},share=on"),
            *("-netdev", f"user,id=n0,hostfwd=tcp:127.0.0.1:{self.port}-:22"),
            *("-chardev", f"file,id=serial,path={self.serial_log},append=on", "-serial", "chardev:serial"),
            *("-monitor", f"unix:{self._monitor},server,nowait"),
            *(() if snapshot is None else ("-loadvm", snapshot)),
        ]
        with (self.folder / "qemu.log").open("wb") as log:
            popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._running = _Running(popen, Process.of(popen.pid))
        except LabError:
            popen.wait()
            raise LabError(f"QEMU: {(self.folder / 'qemu.log').read_text('utf-8').strip()}") from None
        write_json(self.folder / RECORD, self._running.process.dump())

    def stop(self) -> None:
        """End QEMU as a power cut would; fine when it is not running."""
        running, self._running = self._running, None
        if running is None:
            return
        running.process.stop(grace=30)  # QEMU closes the disk, which may be copied then
        running.popen.wait()
        (self.folder / RECORD).unlink(missing_ok=True)

    def remove(self) -> None:
        """End QEMU and delete the folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def alive(self) -> bool:
        """Whether QEMU runs."""
        return self._running is not None and self._running.process.alive()

    def monitor(self, command: str, timeout: float = 120) -> str:
        """What QEMU's monitor answers. Raises LabError where it reports an error."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(self._monitor))
            _until_prompt(connection)
            connection.sendall(command.encode() + b"\n")
            answer = _until_prompt(connection)
        # The line editor echoes the command with control sequences, up to the first line's end.
        text = answer.partition("\r\n")[2].strip()
        if text.startswith("Error"):
            raise LabError(f"QEMU's monitor: {command}: {text}")
        return text

    def save(self, snapshot: str) -> None:
        """Keep the machine as it runs now under a name, inside the disk."""
        self.monitor(f"savevm {snapshot}")

    def resume(self, snapshot: str = SNAPSHOT) -> None:
        """Go on from a kept state (memory, devices, disk) and wait until it answers. Raises LabError."""
        if self.alive():
            self.monitor(f"loadvm {snapshot}")
        else:
            self.start(snapshot)
        self.wait(60)
        # The guest's clock stood still since then; a box has its time from the network.
        self.demand(f"date -s @{time.time():.0f}")

    def ssh_options(self) -> list[str]:
        """Options of ssh with the guest's key checked and nothing of the user's own configuration."""
        return [
            *("-F", "/dev/null", "-i", str(self.image.client_key), "-o", "IdentitiesOnly=yes"),
            *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR"),
            *("-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "GlobalKnownHostsFile=/dev/null"),
            *("-o", "StrictHostKeyChecking=yes", "-p", str(self.port)),
        ]

    def ssh(self, command: str, *, stdin: str | None = None, timeout: float = 120) -> Completed:
        """Run a shell command as root in the guest; the caller looks at the code."""
        argv = ["ssh", *self.ssh_options(), "deploy@127.0.0.1", f"sudo sh -c {_quoted(command)}"]
        return run(argv, check=False, stdin=stdin, timeout=timeout)

    def demand(self, command: str, *, stdin: str | None = None, timeout: float = 120) -> str:
        """The output of a command that must succeed. Raises LabError."""
        done = self.ssh(command, stdin=stdin, timeout=timeout)
        if done.rc != 0:
            raise LabError(f"in the guest: {command}: code {done.rc}: {done.stderr.strip()[-1500:]}")
        return done.stdout

    def wait(self, timeout: float = 300) -> float:
        """Wait until the guest answers over ssh; seconds that it took. Raises LabError."""
        begun = time.monotonic()
        while self.ssh("true", timeout=60).rc != 0:
            if not self.alive():
                raise LabError(f"QEMU ended: {(self.folder / 'qemu.log').read_text('utf-8').strip()}")
            if time.monotonic() - begun > timeout:
                raise LabError(f"the guest does not answer after {timeout:.0f} s; see {self.serial_log}")
            time.sleep(0.5)
        return time.monotonic() - begun

    def copy(self, source: Path, target: str) -> None:
        """Copy a file into the guest. Raises LabError."""
        options = ["-P" if word == "-p" else word for word in self.ssh_options()]  # scp's spelling
        run(["scp", "-q", *options, source, f"deploy@127.0.0.1:{target}"], timeout=300)

    def wait_for_boot(self, before: str, timeout: float) -> str:
        """Wait until another boot than *before* answers; its id. Raises LabError."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            done = self.ssh("cat /proc/sys/kernel/random/boot_id", timeout=60)
            if done.rc == 0 and done.stdout.strip() != before:
                return done.stdout.strip()
            time.sleep(1)
        raise LabError(f"no new boot after {timeout:.0f} s; see {self.serial_log}")

    def inventory(self, **variables: Any) -> Path:
        """Write an inventory of this machine for the kit; *variables* are the roles' public ones."""
        host = {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": "deploy",
            "ansible_become": True,
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_private_key_file": str(self.image.client_key),
            "ansible_ssh_common_args": (
                f"-F /dev/null -o IdentitiesOnly=yes -o UserKnownHostsFile={self.known_hosts}"
                " -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes"
            ),
            "preflight_min_disk_gib": 1,  # the disk is small
            **variables,
        }
        path = self.folder / "hosts.yml"
        content = {"lemonade": {"hosts": {NAME: host}}}
        path.write_text(yaml.safe_dump(content, sort_keys=False, width=1000), "utf-8")
        return path

    def boot_id(self) -> str:
        """Id of the guest's boot."""
        return self.demand("cat /proc/sys/kernel/random/boot_id").strip()


def _quoted(command: str) -> str:
    return "'" + command.replace("'", "'\\''") + "'"


def _until_prompt(connection: socket.socket) -> str:
    seen = b""
    while not seen.endswith(b"(qemu) "):
        part = connection.recv(65536)
        if not part:
            raise LabError(f"QEMU's monitor closed: {seen.decode('utf-8', 'replace')}")
        seen += part
    return seen.decode("utf-8", "replace").removesuffix("(qemu) ")
