# SPDX-License-Identifier: Apache-2.0
"""A systemd unit's state, by ``systemctl show`` (its stable, machine-readable interface)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .host import Host

_PROPERTIES = (
    "LoadState,ActiveState,SubState,UnitFileState,FragmentPath,DropInPaths,MainPID,Result,NRestarts,Job"
)


@dataclass(frozen=True)
class UnitState:
    """What systemd says of a unit; all empty where it knows none."""

    load: str = ""
    active: str = ""
    enabled: str = ""
    fragment: str = ""
    drop_ins: tuple[str, ...] = ()
    main_pid: int = 0
    result: str = ""
    restarts: int = 0  # automatic ones since somebody started it
    job: bool = False  # a start, stop or restart is on its way

    @property
    def running(self) -> bool:
        """Active and not on its way to it: a start that is still retried is no service."""
        return self.active == "active" and self.main_pid > 0

    @property
    def coming(self) -> bool:
        """Somebody is starting or restarting it now; not systemd again after a failure."""
        return self.job and self.restarts == 0


def parse(text: str) -> UnitState:
    """``systemctl show`` output as a state."""
    values: Mapping[str, str] = dict(line.partition("=")[::2] for line in text.splitlines())
    return UnitState(
        load=values.get("LoadState", ""),
        active=values.get("ActiveState", ""),
        enabled=values.get("UnitFileState", ""),
        fragment=values.get("FragmentPath", ""),
        drop_ins=tuple(values.get("DropInPaths", "").split()),
        main_pid=int(values.get("MainPID") or 0),
        result=values.get("Result", ""),
        restarts=int(values.get("NRestarts") or 0),
        job=values.get("Job", "0") not in ("", "0"),
    )


def show(host: Host, unit: str) -> UnitState:
    """State of *unit*. Raises CommandFailed where there is no systemd to ask."""
    return parse(host.run(["systemctl", "show", "-p", _PROPERTIES, unit]).stdout)
