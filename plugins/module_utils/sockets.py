# SPDX-License-Identifier: Apache-2.0
"""Who listens on a TCP port, from /proc (proc_pid_net(5)); no ss or lsof has to be installed."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from dataclasses import dataclass

from .host import Host

_LISTEN, _TIME_WAIT = "0A", "06"
_LINGER = 60  # s that the kernel keeps a closed connection (TCP_TIMEWAIT_LEN)


@dataclass(frozen=True)
class Listener:
    """The process that holds a port. ``unit`` is its control group's last part (a systemd unit)."""

    pid: int
    program: str
    user: str
    unit: str

    def __str__(self) -> str:
        return f"{self.program} (process {self.pid}, user {self.user}, {self.unit})"


def _inodes(host: Host, port: int, state: str = _LISTEN) -> Iterator[str]:
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (host.read(path) or "").splitlines()[1:]:
            fields = line.split()
            if fields[3] == state and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def await_free(host: Host, port: int) -> None:
    """Wait, a minute at most, until no closed connection of another server holds *port*.

    A server that sets SO_REUSEADDR (vLLM) can bind over those of its like, one that sets SO_REUSEPORT
    (lemond's library) over those of its like, and neither over the other's. A kernel that can forgets
    them when asked (ss -K; seen with 6.18); another, or one without ss, does so after that minute.
    """
    if any(_inodes(host, port, _TIME_WAIT)):
        forget = ("ss", "-K", "-tn", "state", "time-wait", "sport", "=", f":{port}")
        host.run(forget, check=False, timeout=30)
    until = time.monotonic() + _LINGER + 5
    while any(_inodes(host, port, _TIME_WAIT)) and time.monotonic() < until:
        time.sleep(0.5)


def listener(host: Host, port: int) -> Listener | None:
    """The process that listens on *port*, None where there is none (or we may not look)."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(host, port)}
    if not wanted:
        return None
    for descriptor in host.glob("/proc/[0-9]*/fd/*"):
        if host.readlink(descriptor) in wanted:
            return _describe(host, int(descriptor.split("/")[2]))
    return None


def _describe(host: Host, pid: int) -> Listener:
    group = (host.read(f"/proc/{pid}/cgroup") or "").strip().rpartition(":")[2]
    try:
        user = pwd.getpwuid(os.stat(host.path(f"/proc/{pid}")).st_uid).pw_name
    except (KeyError, OSError):
        user = "unknown"
    program = host.readlink(f"/proc/{pid}/exe") or "a program"
    return Listener(pid, program, user, group.rpartition("/")[2] or "no unit")
