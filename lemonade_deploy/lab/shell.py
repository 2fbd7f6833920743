# SPDX-License-Identifier: Apache-2.0
"""Commands of this machine, the programs the lab needs, and processes that are remembered safely."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class LabError(Exception):
    """The lab cannot do what was asked; the text says why and what to do."""


class LabUsageError(LabError):
    """The machine or the arguments do not fit (exit code 64)."""


# program -> Debian package that brings it
NEEDED = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "apt-ftparchive": "apt-utils",
    "dpkg-deb": "dpkg",
    "gpg": "gnupg",
    "zstd": "zstd",
}

NEEDED_FILES = {"/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring"}


def check_machine() -> None:
    """Root and the needed packages, or LabUsageError in one line."""
    if os.geteuid() != 0:
        raise LabUsageError("the lab boots systemd hosts and needs root: run the same command with sudo")
    packages = sorted(
        {deb for program, deb in NEEDED.items() if shutil.which(program) is None}
        | {deb for path, deb in NEEDED_FILES.items() if not Path(path).exists()}
    )
    if packages:
        raise LabUsageError(f"the lab misses packages; install them: apt-get install {' '.join(packages)}")


@dataclass(frozen=True)
class Completed:
    """A finished command: exit code and decoded output."""

    rc: int
    stdout: str
    stderr: str


def run(
    argv: Sequence[str | Path],
    *,
    check: bool = True,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    cwd: Path | None = None,
) -> Completed:
    """Run *argv* without a shell; with ``check`` a non-zero code raises LabError. Timeout in seconds."""
    words = [str(word) for word in argv]
    done = subprocess.run(
        words,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        env=None if env is None else {**os.environ, **env},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        cwd=cwd,
        check=False,
    )
    if check and done.returncode != 0:
        tail = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-15:])[-2000:]
        raise LabError(f"`{' '.join(words)[:200]}` ended with code {done.returncode}: {tail}")
    return Completed(done.returncode, done.stdout, done.stderr)


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc(5), field 22); None when gone or zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Process:
    """A process by its id and its start time, so that a reused id is never signalled."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Remember a live process; LabError when it is gone already."""
        started = start_time(pid)
        if started is None:
            raise LabError(f"process {pid} ended at once")
        return cls(pid, started)

    @classmethod
    def load(cls, raw: Mapping[str, Any] | None) -> Process | None:
        """From its dictionary form."""
        return None if not raw else cls(int(raw["pid"]), int(raw["started"]))

    def dump(self) -> dict[str, int]:
        """The form that is kept in files."""
        return asdict(self)

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return start_time(self.pid) == self.started

    def stop(self, grace: float = 5.0) -> None:
        """SIGTERM, then SIGKILL after *grace* seconds; fine when it is gone."""
        for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
            if not self.alive():
                return
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return
            self.wait(patience)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; False when it still runs after *seconds*."""
        until = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > until:
                return False
            reap(self.pid)
            time.sleep(0.05)
        return True


def reap(pid: int) -> None:
    """Collect a child of ours that ended, so that it does not stay a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
