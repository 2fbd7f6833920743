# SPDX-License-Identifier: Apache-2.0
"""ssh keys of the lab: one client key, one host key a host (it survives a reset), known_hosts."""

from __future__ import annotations

from pathlib import Path

from .network import Network
from .paths import state_dir
from .shell import run
from .state import LabState

USER = "deploy"


def folder() -> Path:
    """Where the keys lie (0700)."""
    path = state_dir() / "keys"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path


def _ensure(path: Path, comment: str) -> Path:
    if not path.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])
    return path


def client_key() -> Path:
    """Private key that every lab host lets in as user ``deploy``."""
    return _ensure(folder() / "id_ed25519", "lemonade-lab")


def host_key(name: str) -> Path:
    """Private host key of a host."""
    return _ensure(folder() / f"host-{name}", f"lab host {name}")


def public(key: Path) -> str:
    """The public half, one line."""
    return key.with_name(key.name + ".pub").read_text(encoding="utf-8").strip()


def known_hosts() -> Path:
    """The file that names every host's key."""
    return folder() / "known_hosts"


def write_known_hosts(state: LabState, network: Network) -> None:
    """Write known_hosts for the hosts of *state*."""
    lines = [
        f"{network.address(host)},{host.name} {' '.join(public(host_key(host.name)).split()[:2])}"
        for host in state.hosts.values()
    ]
    known_hosts().write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def ssh_options() -> list[str]:
    """Options that reach lab hosts with checked keys and nothing of the user's own configuration."""
    return [
        *("-F", "/dev/null", "-i", str(client_key())),
        *("-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
        *("-o", f"UserKnownHostsFile={known_hosts()}", "-o", "StrictHostKeyChecking=yes"),
        *("-o", "GlobalKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"),
    ]
