# SPDX-License-Identifier: Apache-2.0
"""What is up: one JSON file in the state folder, changed only under a lock."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .paths import state_dir
from .say import say


@dataclass
class HostRecord:
    """One simulated host. ``index`` decides its address and its interface names."""

    name: str
    index: int
    profile: str
    engine: str


@dataclass
class LabState:
    """Everything that ``lab down`` has to know."""

    hosts: dict[str, HostRecord] = field(default_factory=dict)
    services: dict[str, int] | None = None  # Process of the lab's servers
    network: int | None = None  # number of its network, which stands on the hosts' disks, too

    def free_index(self) -> int:
        """The lowest index that no host has."""
        taken = {host.index for host in self.hosts.values()}
        return next(index for index in range(200) if index not in taken)


def _file() -> Path:
    return state_dir() / "lab.json"


def write_json(path: Path, content: object, mode: int = 0o644) -> None:
    """Replace a JSON file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.chmod(mode)
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """A JSON file's content; None where there is no file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def load() -> LabState:
    """The state as last saved; an empty one where no lab is up."""
    raw = read_json(_file())
    if raw is None:
        return LabState()
    hosts = {name: HostRecord(**host) for name, host in raw["hosts"].items()}
    return LabState(hosts, raw["services"], raw.get("network"))


def save(state: LabState) -> None:
    """Write the state."""
    write_json(_file(), asdict(state))


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file *path*; waits for another holder and says for *what*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another command that {what}")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def locked() -> Iterator[LabState]:
    """Hold the lab's lock (waits for others), give the state, save it at the end, errors included."""
    with exclusive(state_dir() / "lock", "changes the lab"):
        state = load()
        try:
            yield state
        finally:
            save(state)
