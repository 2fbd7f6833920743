# SPDX-License-Identifier: Apache-2.0
"""Helpers of the integration tests: the command as a user runs it, and a host's disk as evidence."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemonade_deploy.domain.paths import CHECK_MODE_MAY_WRITE
from lemonade_deploy.lab import Lab


@dataclass(frozen=True)
class Ran:
    """What a command of the kit did."""

    rc: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.stdout)


def kit(*argv: str, timeout: float = 1500, env: dict[str, str] | None = None) -> Ran:
    """Run ``lemonade-deploy ARGV`` and return what it did; *timeout* in seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "lemonade_deploy", *argv],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def host_of(ran: Ran, name: str) -> dict[str, Any]:
    """One host's part of a ``--json`` document; on trouble the test shows what the kit said."""
    assert ran.stdout.lstrip().startswith("{"), f"exit {ran.rc}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    host: dict[str, Any] = ran.document["hosts"][name]
    return host


def changed(host: dict[str, Any]) -> set[tuple[str, str, str]]:
    """The contract of ``--json``: what changed, as (layer, object, action)."""
    return {(item["layer"], item["object"], item["action"]) for item in host["changed"]}


def boot_id(lab: Lab, host: str) -> str:
    """The id of the host's present boot; empty while nothing answers."""
    return lab.exec(host, ["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()


def reboot(lab: Lab, host: str, timeout: float = 180) -> None:
    """Reboot a host as a person would and wait until its next boot answers."""
    before = boot_id(lab, host)
    lab.exec(host, ["sudo", "systemctl", "reboot"])
    until = time.monotonic() + timeout
    while boot_id(lab, host) in {"", before}:
        assert time.monotonic() < until, f"{host} did not come back within {timeout:.0f} s"
        time.sleep(0.5)


def disk(upper: Path) -> dict[str, str]:
    """Every file that a host has of its own, with a digest of type, mode and content.

    *upper* is the writable layer of the host's overlay. Folders that check mode may
    write are left out.
    """
    spared = tuple(path.lstrip("/").replace("~/", "home/deploy/") for path in CHECK_MODE_MAY_WRITE)
    seen: dict[str, str] = {}
    for folder, _folders, files in os.walk(upper):
        for name in files:
            path = Path(folder, name)
            relative = str(path.relative_to(upper))
            if relative.startswith(tuple(f"{part}/" for part in (*spared, "root/.ansible"))):
                continue
            stat = path.lstat()
            content = os.readlink(path).encode() if path.is_symlink() else b""
            if not path.is_symlink() and path.is_file():
                content = path.read_bytes()
            seen[relative] = f"{stat.st_mode:o}:{stat.st_uid}:{hashlib.sha256(content).hexdigest()}"
    return seen
