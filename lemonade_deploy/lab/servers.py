# SPDX-License-Identifier: Apache-2.0
"""The lab's servers: builds what they serve and keeps their one process running in its namespace."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import engine, services
from .network import Network, pids_in
from .paths import cache_dir, state_dir
from .say import say
from .services import github
from .services.assembly import Services
from .services.assembly import build as build_services
from .shell import LabError, Process, reap
from .state import LabState, read_json, write_json

MODULE = f"{services.__name__}.server"
HOOKS = f"{__package__}.modelhub"


def www() -> Path:
    """What is served, one folder a host name; a copy, so that tests may spoil it."""
    return state_dir() / "www"


def access_log() -> Path:
    """One JSON line an answer."""
    return state_dir() / "access.jsonl"


def make_archives() -> Services:
    """Repositories, keys, certificates; made once, laid out in :func:`www`."""
    return build_services(cache_dir(), www(), say)


def make_engine(name: str, families: Sequence[str]) -> engine.EngineRelease:
    """Bundles (one a GPU family) and models of an engine; made once, laid out in :func:`www`."""
    made = engine.build(cache_dir(), www(), name, families)
    github.furnish(www())
    write_json(_engines(), {**engine_versions(), made.engine: made.version})
    return made


def engine_versions() -> dict[str, str]:
    """What each engine that the lab serves really is, e.g. vllm -> "vLLM 0.32.0 CPU"."""
    return dict(read_json(_engines()) or {})


def _engines() -> Path:
    return state_dir() / "engines.json"


def start(state: LabState, network: Network, made: Services) -> None:
    """Start the servers; does nothing where they run. LabError when they don't answer."""
    process = Process.load(state.services)
    if process is not None and process.alive():
        return
    command = [
        *("ip", "netns", "exec", network.services_netns, sys.executable, "-m", MODULE),
        *("--www", str(www()), "--address", network.services_address, "--log", str(access_log())),
        *("--cert", str(made.certificate), "--key", str(made.certificate_key), "--hooks", HOOKS),
    ]
    log_file = state_dir() / "services.log"
    with log_file.open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
    started = Process.of(child.pid)
    state.services = started.dump()
    until = time.monotonic() + 20
    while not _answers(network.services_address):
        reap(child.pid)
        if not started.alive() or time.monotonic() > until:
            tail = log_file.read_text(encoding="utf-8", errors="replace")[-1000:]
            raise LabError(f"the lab's servers do not start: {tail}")
        time.sleep(0.1)


def stop(state: LabState, network: Network) -> None:
    """Stop the servers; idempotent, also when the record was lost."""
    for pid in pids_in(network.services_netns):
        Process.of(pid).stop()
    process = Process.load(state.services)
    if process is not None:
        process.stop()
    state.services = None


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 443), timeout=1):
            return True
    except OSError:
        return False
