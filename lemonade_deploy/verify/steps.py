# SPDX-License-Identifier: Apache-2.0
"""What ``--disruptive`` does to a host between two runs of the suite: restart the service, reboot."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from testinfra.host import Host  # type: ignore[import-untyped]

RESTART, REBOOT = "restart", "reboot"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
UNITS = ("lemonade-vllm.service", "lemond.service")
_PAUSE = 2.0  # s between two looks at a host that boots


def restart(host: Host, timeout: float = 300) -> str:
    """Restart the service and wait until it runs; why not, or ""."""
    unit = _unit(host)
    done = host.run(f"systemctl restart {unit}")
    if done.rc != 0:
        return f"`systemctl restart {unit}` ended with code {done.rc}: {done.stderr.strip()}"
    until = time.monotonic() + timeout
    while host.run(f"systemctl is-active -q {unit}").rc != 0:
        if time.monotonic() > until:
            return f"{unit} does not run {timeout:.0f} s after its restart"
        time.sleep(0.5)
    return ""


def _unit(host: Host) -> str:
    """The daemon's unit: the one that is enabled."""
    enabled = [unit for unit in UNITS if host.run(f"systemctl is-enabled -q {unit}").rc == 0]
    return enabled[0] if enabled else UNITS[-1]


def reboot(connect: Callable[[], Host], local: bool, timeout: float = 900) -> str:
    """Reboot and wait for another boot; why that was not to be had, or "".

    ``connect`` opens a fresh way in.
    """
    host = connect()
    before = _boot_id(host)
    if local or before == Path(BOOT_ID).read_text(encoding="ascii").strip():
        return "it is the machine that this command runs on: reboot it yourself, then run verify again"
    # In a moment, so that this very command still ends well.
    done = host.run("systemd-run -q --on-active=1 systemctl reboot")
    if done.rc != 0:
        return f"the reboot cannot be asked for: {done.stderr.strip()}"
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        time.sleep(_PAUSE)
        now = _boot_id(connect())
        if now and now != before:
            return _settled(connect(), until)
    return f"it does not answer {timeout:.0f} s after the reboot was asked for"


def _settled(host: Host, until: float) -> str:
    """Wait until systemd has started what it starts."""
    while time.monotonic() < until:
        state = host.run("systemctl is-system-running").stdout.strip()
        if state not in ("", "initializing", "starting"):
            return ""
        time.sleep(_PAUSE)
    return "systemd has not come to an end of its start"


def _boot_id(host: Host) -> str:
    """The id of the host's boot, "" while it does not answer."""
    try:
        return str(host.run(f"cat {BOOT_ID}").stdout).strip()
    except Exception:  # testinfra lets every kind of a transport's error through; a booting host has many
        return ""
