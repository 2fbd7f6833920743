# SPDX-License-Identifier: Apache-2.0
"""The Ansible inventory of the lab's hosts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from lemonade_deploy.depot import lockfile
from lemonade_deploy.domain.assets import partcount_name
from lemonade_deploy.domain.lock import Asset, Release

from . import keys
from .engine import EngineRelease, host_variables
from .engine.release import DOWNLOADS as DOWNLOADS_PATH
from .network import Network
from .paths import state_dir
from .services.assembly import Services
from .state import LabState

DOWNLOADS = f"https://{DOWNLOADS_PATH}"
HEADER = "# Written by `lemonade-deploy lab`: simulated hosts. Changes are lost.\n"


def path() -> Path:
    """Where the inventory lies; the lab's lemonade-deploy.lock lies beside it."""
    return state_dir() / "inventory" / "hosts.yml"


def write(state: LabState, network: Network, served: Services) -> None:
    """Write the inventory of *state*."""
    hosts = {
        host.name: {"ansible_host": network.address(host), **host_variables(host.engine)}
        for host in state.hosts.values()
    }
    content = {"lemonade": {"hosts": hosts, "vars": {**_connection(), **lab_variables(served)}}}
    path().parent.mkdir(parents=True, exist_ok=True)
    path().write_text(HEADER + yaml.safe_dump(content, sort_keys=False, width=1000), encoding="utf-8")


def write_lock(made: Iterable[EngineRelease]) -> None:
    """Lock the lab's releases beside the inventory; the digests are those of the built files."""
    locked = {}
    for engine in made:
        for release in engine.releases:
            assets = tuple(
                Asset(asset.name, asset.size, asset.sha256, f"{DOWNLOADS}/{release.tag}/{asset.name}")
                for asset in release.assets
                if asset.name != partcount_name(release.tag)  # says how many parts; no part itself
            )
            when = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            source = f"lemonade-deploy lab ({release.engine}: {release.version}), simulated release server"
            locked[release.tag] = Release(release.tag, release.family, assets, release.tree, when, source)
    path().parent.mkdir(parents=True, exist_ok=True)
    lockfile.write(lockfile.beside(str(path())), locked)


def lab_variables(served: Services) -> dict[str, Any]:
    """What differs from the real world for every host, and only by the roles' public variables."""
    return {
        "amdgpu_driver_repo_key_fingerprint": served.fingerprints["amd"],
        "kernel_mainline_key_fingerprint": served.fingerprints["mainline"],
        "lemonade_server_ppa_fingerprint": served.fingerprints["ppa"],
        # lemond's own 4G would be resident on every host.
        "lemonade_server_vllm_args": "--kv-cache-memory-bytes 256M",
    }


def _connection() -> dict[str, Any]:
    return {
        "ansible_user": keys.USER,
        "ansible_become": True,
        "ansible_ssh_private_key_file": str(keys.client_key()),
        "ansible_ssh_common_args": (
            f"-F /dev/null -o IdentitiesOnly=yes -o UserKnownHostsFile={keys.known_hosts()}"
            " -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes"
        ),
        "ansible_python_interpreter": "/usr/bin/python3",
    }
