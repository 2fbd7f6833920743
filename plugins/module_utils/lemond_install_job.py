# SPDX-License-Identifier: Apache-2.0
"""The process that holds lemond's connection while it installs, and the file in which it tells how far it is.

A module cannot speak while it works. The job goes on between two of its calls, and after the controller
is gone; another call finds it by the file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import lemond_config, lemond_service, systemd, vllm_home
from .host import Host
from .lemond_api import Lemond, LemondUnreachable

STATE = "/run/lemonade-deploy/vllm-install.json"
SILENCE = 900.0  # s without an event: longer than the two 300 s that lemond gives tar
_POLL = 0.5  # s; lemond announces nothing to a second client


@dataclass(frozen=True)
class State:
    """``end``: lemond's last word ({} for success, else error or action), None while it works."""

    tag: str
    pid: int = 0
    began: float = 0.0
    file: str = ""
    number: int = 0
    files: int = 0
    done: int = 0
    total: int = 0
    end: dict[str, Any] | None = None

    def text(self) -> str:
        """How far it is, for people."""
        if not self.files:
            return "waiting for lemond"
        if self.total and self.done < self.total:
            share = f"{self.done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB"
            return f"file {self.number} of {self.files}, {share}"
        return f"file {self.number} of {self.files}" + (" is there" if self.total else "")


def read(host: Host, tag: str) -> State | None:
    """The state of a job for *tag* that runs or has ended; None where none does."""
    try:
        state = State(**json.loads(host.read(STATE) or ""))
    except (ValueError, TypeError):
        return None
    alive = host.exists(f"/proc/{state.pid}")
    return state if state.tag == tag and (state.end is not None or alive) else None


def forget(host: Host) -> None:
    """The job's last word was heard."""
    os.unlink(host.path(STATE))


def wait(host: Host, tag: str, seconds: float) -> State:
    """The state when the job has ended, or after *seconds*."""
    until = time.monotonic() + seconds
    while True:
        state = read(host, tag)
        if state is None:
            return State(tag, end={"error": "the process that waited for it was killed"})
        if state.end is not None or time.monotonic() > until:
            return state
        time.sleep(_POLL)


def start(host: Host, tag: str, timeout: float) -> None:
    """Run the job, detached from this process and its session."""
    write(host, State(tag, os.getpid(), time.time()))
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in range(3):
        os.dup2(nothing, handle)
    state = State(tag, os.getpid(), time.time())
    try:
        write(host, state)
        run(host, state, timeout)
    except BaseException as error:  # the last word must be told, whatever it is
        write(host, replace(state, end={"error": f"{type(error).__name__}: {error}"}))
    finally:
        os._exit(0)


def run(host: Host, state: State, timeout: float) -> None:
    """Wait until lemond does not install by itself, then have it installed."""
    until = state.began + timeout
    while busy(host):
        if time.time() > until:
            write(host, replace(state, end={"error": f"it still installed by itself after {timeout:.0f} s"}))
            return
        time.sleep(_POLL)
    if vllm_home.lemond_version(host) == state.tag:
        write(host, replace(state, end={}))
        return
    client = Lemond(lemond_config.read_endpoint(host), lemond_config.read_secret(host, "LEMONADE_API_KEY"))
    body = {"recipe": "vllm", "backend": "rocm", "stream": True}
    try:
        told = 0.0
        for event in client.events("/v1/install", body, SILENCE):
            state = heard(state, event)
            if state.end is None and time.time() > until:
                state = replace(state, end={"error": f"it was not done after {timeout:.0f} s"})
            if state.end is not None or time.time() > told + _POLL:
                told = time.time()
                write(host, state)
            if state.end is not None:
                return
    except LemondUnreachable as error:
        write(host, replace(state, end={"error": str(error)}))
        return
    write(host, replace(state, end={"error": "lemond closed the connection without a last word"}))


def heard(state: State, event: tuple[str, Any]) -> State:
    """The state after an event of the stream. ("", body) is an answer that is no stream."""
    name, data = event
    body = data if isinstance(data, dict) else {"error": str(data)}
    if name == "progress":
        return replace(
            state,
            file=str(body.get("file", "")),
            number=int(body.get("file_index") or 0),
            files=int(body.get("total_files") or 0),
            done=int(body.get("bytes_downloaded") or 0),
            total=int(body.get("bytes_total") or 0),
        )
    # `action` beside success or alone: nothing was installed.
    for key in ("action", "error"):
        if body.get(key):
            return replace(state, end={key: body[key]})
    if name == "complete" or (not name and body.get("status") == "success"):
        return replace(state, end={})
    return replace(state, end={"error": f"an answer that means nothing: {json.dumps(body)[:200]}"})


def busy(host: Host) -> bool:
    """Whether lemond downloads or unpacks a vLLM now, by its open files and its children."""
    pid = systemd.show(host, lemond_service.UNIT).main_pid
    if not pid:
        return False
    held = (host.readlink(path) or "" for path in host.glob(f"/proc/{pid}/fd/*"))
    return any("/vllm_rocm_" in path for path in held) or any(
        (host.read(f"/proc/{child}/comm") or "").strip() == "tar" for child in _children(host, pid)
    )


def _children(host: Host, pid: int) -> Iterator[str]:
    for path in host.glob(f"/proc/{pid}/task/*/children"):
        yield from (host.read(path) or "").split()


def write(host: Host, state: State) -> None:
    """Tell the state, whole or not at all."""
    host.write(STATE, json.dumps(asdict(state)) + "\n", 0o600)
