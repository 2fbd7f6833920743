# SPDX-License-Identifier: Apache-2.0
"""The engine's process under lemond: which program answers, and whether it is the active bundle's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import paths, systemd, vllm_home
from .host import Host
from .module import Refused

UNIT = "lemond.service"


@dataclass(frozen=True)
class Engine:
    """``bundle`` is the folder of the active release; ``argv`` the process's own arguments."""

    pid: int
    executable: str
    argv: tuple[str, ...]
    bundle: str
    below_service: bool

    @property
    def from_bundle(self) -> bool:
        """Whether the program stands in the active release's folder."""
        return bool(self.bundle) and self.executable.startswith(self.bundle + "/")

    def public(self) -> dict[str, Any]:
        """For a module's result; the arguments are not in it, they may be the user's."""
        return {"pid": self.pid, "executable": self.executable, "bundle": self.bundle}


def active_bundle(host: Host) -> str:
    """The folder of the vLLM that serves: the link ``current``, or lemond's own; "" where there is none."""
    return vllm_home.active(host)


def read(host: Host, entry: Mapping[str, Any]) -> Engine:
    """The engine behind an entry of /v1/health."""
    pid = int(entry.get("pid") or 0)
    cmdline = host.read(f"/proc/{pid}/cmdline") or ""
    main_pid = systemd.show(host, UNIT).main_pid
    return Engine(
        pid,
        host.readlink(f"/proc/{pid}/exe") or "",
        tuple(cmdline.rstrip("\0").split("\0")) if cmdline else (),
        active_bundle(host),
        main_pid > 0 and main_pid in ancestors(host, pid),
    )


def read_daemon(host: Host, unit: str) -> Engine:
    """The engine that is a service's own process."""
    pid = systemd.show(host, unit).main_pid
    cmdline = host.read(f"/proc/{pid}/cmdline") or ""
    return Engine(
        pid,
        host.readlink(f"/proc/{pid}/exe") or "",
        tuple(cmdline.rstrip("\0").split("\0")) if cmdline else (),
        active_bundle(host),
        below_service=pid > 0,
    )


def ancestors(host: Host, pid: int) -> list[int]:
    """Parents of a process, nearest first."""
    found: list[int] = []
    while pid > 1:
        # The second field is the name in parentheses and may hold spaces (proc(5)).
        fields = (host.read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        if len(fields) < 2 or int(fields[1]) in found:
            break
        pid = int(fields[1])
        found.append(pid)
    return found


def check(engine: Engine, unit: str = UNIT) -> None:
    """Raises Refused unless the engine is the service's and runs from the active bundle."""
    if not engine.executable:
        raise Refused(f"The engine's process {engine.pid} of {unit} is gone.", f"See `journalctl -u {unit}`.")
    if not engine.below_service:
        raise Refused(
            f"{engine.executable} (process {engine.pid}) is no child of {unit}.",
            "Another lemond answers at this port: `ss -ltnp` names it.",
        )
    if not engine.from_bundle:
        raise Refused(
            f"The engine of {unit} is {engine.executable}, not one of "
            f"{engine.bundle or paths.BUNDLE_CURRENT}.",
            "Run the roles vllm_rocm, lemonade_server and models; a config.json that sets vllm.rocm_bin is "
            "the finding config-overridden.",
        )
