# SPDX-License-Identifier: Apache-2.0
"""What ``lab list`` says about a host."""

from __future__ import annotations

from typing import Any

from . import servers
from .boot import Boot
from .firmware import last_boot
from .host import Host

SIMULATED = (
    "the AMD GPU and its driver (sysfs, stub modules)",
    "the kernel that is shown as running",
    "Ubuntu 24.04 (Debian under its name)",
    "AMD's, Ubuntu's and the PPA's archives, GitHub and Hugging Face (the lab's own servers and CA)",
)


def host_report(host: Host) -> dict[str, Any]:
    """Profile, address, power, engine and the last boot of *host*."""
    boot = last_boot(host)
    driver = boot.driver if boot else None
    state = _state(host, boot)
    return {
        "status": "ok" if state == "running" else "unreachable",
        "profile": host.record.profile,
        "engine": host.record.engine,
        "engine_version": servers.engine_versions().get(host.record.engine),
        "address": host.address,
        "state": state,
        "kernel": boot.kernel if boot else None,
        "boot_entry": boot.entry if boot else None,
        "driver": driver.origin if driver else "none",
        "cwsr": driver.cwsr if driver else None,
        "reason": boot.reason if boot else None,
        "simulated": list(SIMULATED),
    }


def _state(host: Host, boot: Boot | None) -> str:
    """``running``, ``off``, or ``stuck`` where the machine hangs in its boot."""
    if not host.running():
        return "off"
    return "stuck" if boot is not None and boot.reason.startswith("stuck: ") else "running"
