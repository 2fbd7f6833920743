# SPDX-License-Identifier: Apache-2.0
"""A control group of its own for every host.

systemd-nspawn --keep-unit makes ``payload`` and ``supervisor`` below the group it is started in.
Two hosts started from one group would share them, and one host's systemd would end services
(by cgroup.kill) of the other's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from .shell import LabError

TOP = "lemonade-lab"


def _hierarchies() -> list[Path]:
    """Where cgroup v2 and, on hybrid machines, the hierarchy ``name=systemd`` are mounted."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        mount, _, kind = line.partition(" - ")
        words = kind.split()
        if words[0] == "cgroup2" or (words[0] == "cgroup" and "name=systemd" in words[2].split(",")):
            found.append(Path(mount.split()[4]))
    return found


def _folders(name: str) -> list[Path]:
    return [hierarchy / TOP / name for hierarchy in _hierarchies()]


def inside(name: str, argv: Sequence[str]) -> list[str]:
    """The argv that runs *argv* (same process id) in the group *name*, which is made here."""
    folders = _folders(name)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    moves = "; ".join(f"echo 0 > {folder}/cgroup.procs" for folder in folders)
    return ["/bin/sh", "-c", f'{moves}; exec "$@"', "sh", *argv]


def remove(name: str) -> None:
    """Remove the group, in which no process runs any more; fine where there is none."""
    for folder in _folders(name):
        if folder.is_dir():
            _remove(folder)
            if not any(path.is_dir() for path in folder.parent.iterdir()):
                folder.parent.rmdir()


def _remove(folder: Path) -> None:
    below = [path for path in folder.rglob("*") if path.is_dir()]
    for path in [*sorted(below, key=lambda path: -len(path.parts)), folder]:
        for _attempt in range(50):
            try:
                path.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:  # its last process is just ending
                time.sleep(0.05)
        else:
            raise LabError(f"the control group {path} still has processes")
