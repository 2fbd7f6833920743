# SPDX-License-Identifier: Apache-2.0
"""vLLM itself as a service of systemd: our unit around the bundle's launcher, one model, no internet.

lemond asks huggingface.co on every load of an unquantised model, offline or not (vllm_server.cpp:138-189);
this does not. The unit names the launcher, which resolves the active bundle once at its start.
"""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from . import daemon, lemond_log, lemond_service, paths, restart_mark, sockets, systemd, vllm_arguments
from .change import Call, Change, Command, Operation, Remove, WriteFile
from .host import Host
from .lemond_models import BUILT_IN, on_disk, wanted_from
from .module import Refused
from .scrub import scrub
from .systemd import UnitState
from .vllm_arguments import Served

LAYER = lemond_service.LAYER
UNIT = daemon.UNITS[daemon.VLLM]
OBJECT = "service vllm"
ARGUMENTS = "@ARGUMENTS@"  # in the unit's text: where the command line's arguments belong
START_TIMEOUT = 1800  # s; loading is part of the start, and the first one compiles kernels
_TRIM = 200  # characters of a line that are shown
_WEIGHTS = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True)
class Desired:
    """``files`` is what both daemons have: its ``unit`` is vLLM's, its ``settings`` do not count."""

    unit: str
    secrets: str
    model: Served


@dataclass(frozen=True)
class Current:
    """What stands on the host. ``lemond`` is its unit's state; ``model_there``: nothing to download."""

    unit: str | None
    state: UnitState
    lemond: UnitState
    model_there: bool
    shared: lemond_service.Current


def model_from(models: Sequence[Mapping[str, Any]], ctx_size: int, vllm_args: str) -> Served:
    """The model to serve: the first of ``models_wanted``. Raises Refused."""
    if not models:
        raise Refused("models_wanted names no model for vLLM to serve.", "Name one; the first one is served.")
    first = wanted_from(models[0])
    checkpoint = first.checkpoint or BUILT_IN.get(first.name, "")
    if first.recipe != "vllm" or not checkpoint:
        raise Refused(
            f"vLLM cannot serve {first.name}: "
            + (f"its recipe is {first.recipe}." if checkpoint else "it is none of lemond's vLLM models."),
            "Put a model of the recipe vllm first in models_wanted, an own one with its checkpoint.",
        )
    args = vllm_arguments.split(vllm_args, first.args)
    return Served(first.name, checkpoint, first.ctx_size or ctx_size, args)


def model_there(host: Host, checkpoint: str) -> bool:
    """Whether all of a checkpoint is on the host: in the hub's cache, or in the folder that it names."""
    if checkpoint.startswith("/"):
        return any(name.endswith(_WEIGHTS) for name in host.listdir(checkpoint))
    return on_disk(host, checkpoint)


def refuse_missing(model: Served) -> None:
    """Raises Refused: the model is not there, and nothing may be downloaded."""
    place = model.checkpoint
    if not place.startswith("/"):
        place = f"{lemond_service.HF_HOME}/hub/models--{place.partition(':')[0].replace('/', '--')}"
    raise Refused(
        f"{model.name} ({model.checkpoint}) is not on the host; lemonade_server_offline forbids a download.",
        f"Put it into {place} (the hub's cache layout: refs/main, snapshots/COMMIT/), or name a folder "
        "on the host as its checkpoint.",
    )


def unit_text(template: str, model: Served, host: str, port: int) -> str:
    """The unit with its command line. Raises Refused."""
    line = vllm_arguments.quoted(vllm_arguments.argv(model, host, port))
    return template.replace(ARGUMENTS, line).rstrip("\n") + "\n"


def read(host: Host, model: Served) -> Current:
    """The current state."""
    return Current(
        unit=host.read(paths.VLLM_UNIT),
        state=systemd.show(host, UNIT),
        lemond=systemd.show(host, lemond_service.UNIT),
        model_there=model_there(host, model.checkpoint),
        shared=lemond_service.read(host),
    )


def plan(current: Current, desired: Desired, endpoint: str, timeout: float) -> list[Change]:
    """Files, and the start where the model is there. Else the role models starts it, after the download."""
    changes = lemond_service.common_changes(current.shared, desired.secrets)
    if current.unit != desired.unit:
        write = (WriteFile(paths.VLLM_UNIT, desired.unit),)
        name = f"unit {UNIT}"
        changes.append(Change(LAYER, name, "write", paths.VLLM_UNIT, current.unit or "", desired.unit, write))
    if changes:
        due = WriteFile(paths.LEMOND_RESTART_DUE, "")
        changes[0] = replace(changes[0], operations=(due, *changes[0].operations))
    if current.model_there:
        due_now = bool(changes) or current.shared.restart_due
        changes += starts(LAYER, current.state, current.lemond, endpoint, timeout, due_now)
    return changes


def starts(
    layer: str, state: UnitState, lemond: UnitState, endpoint: str, timeout: float, due: bool
) -> list[Change]:
    """lemond gives way, and vLLM starts, restarts (*due*) or is enabled."""
    changes = []
    if lemond.running or lemond.enabled == "enabled":
        # Its files stay: who goes back finds lemond's models and settings.
        stop = Command(("systemctl", "disable", "--now", lemond_service.UNIT), timeout=300)
        free = Call(lambda host: sockets.await_free(host, urlsplit(endpoint).port or 0))
        changes.append(
            Change(layer, "service lemond", "stop", "vLLM takes its place", operations=(stop, free))
        )
    if not state.running:
        changes.append(start(layer, "start", endpoint, timeout))
    elif due:
        changes.append(start(layer, "restart", endpoint, timeout))
    elif state.enabled != "enabled":
        enable = Command(("systemctl", "enable", UNIT))
        changes.append(Change(layer, OBJECT, "enable", operations=(enable,)))
    return changes


def start(layer: str, action: str, endpoint: str, timeout: float) -> Change:
    """Start or restart, and wait until the model answers."""
    operations: tuple[Operation, ...] = (
        Command(("systemctl", "daemon-reload")),
        Command(("systemctl", "enable", UNIT)),
        Command(("systemctl", "reset-failed", UNIT)),
        restart_mark.TAKE,
        Call(lambda host: _restart(host, endpoint, timeout)),
        restart_mark.SETTLE,
        Remove(paths.LEMOND_RESTART_DUE),
    )
    return Change(layer, OBJECT, action, endpoint, operations=operations)


def restart(host: Host) -> None:
    """Restart at the endpoint that the unit on the host names. Raises Refused, CommandFailed."""
    _restart(host, daemon.endpoint(host), START_TIMEOUT)


def stop_and_remove(endpoint: str) -> Change:
    """vLLM gives way to lemond, which will have *endpoint*."""
    operations = (
        Command(("systemctl", "disable", "--now", UNIT), timeout=300),
        Call(lambda host: sockets.await_free(host, urlsplit(endpoint).port or 0)),
        Remove(paths.VLLM_UNIT),
        Command(("systemctl", "daemon-reload")),
    )
    return Change(LAYER, OBJECT, "remove", "lemond takes its place", operations=operations)


def _restart(host: Host, endpoint: str, timeout: float) -> None:
    began = time.time()
    host.run(["systemctl", "restart", UNIT], timeout=300)
    await_ready(host, endpoint, timeout, began)


def seconds_since_start(host: Host) -> float:
    """Seconds since the service's process was started."""
    shown = host.run(["systemctl", "show", "--value", "-p", "ExecMainStartTimestampMonotonic", UNIT]).stdout
    return round(time.monotonic() - int(shown.strip() or 0) / 1e6, 2)


def healthy(endpoint: str) -> bool:
    """Whether /health answers 200; it needs no key."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(endpoint + "/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, http.client.HTTPException):  # URLError is the former; the latter speaks no HTTP
        return False


def await_ready(host: Host, endpoint: str, timeout: float, began: float) -> None:
    """Wait until vLLM has loaded its model. Raises Refused with the line that says why it does not."""
    until = time.monotonic() + timeout
    lemond_service.refuse_foreign_holder(host, endpoint, UNIT)
    while True:
        state = systemd.show(host, UNIT)
        if state.running and healthy(endpoint):
            lemond_service.refuse_foreign_holder(host, endpoint, UNIT)
            return
        if state.restarts or state.active == "failed":
            raise _failure(host, endpoint, began)
        if time.monotonic() > until:
            raise Refused(
                f"vLLM has not loaded its model after {timeout:.0f} s.",
                "A first load compiles kernels and can take many minutes: raise models_load_timeout. "
                f"`journalctl -fu {UNIT}` shows what it does.",
            )
        time.sleep(0.3)


def _failure(host: Host, endpoint: str, began: float) -> Refused:
    """Why the service ended, by its own log."""
    lemond_service.refuse_foreign_holder(host, endpoint, UNIT)
    messages = lemond_log.read(host, since=began, unit=UNIT)
    remedy = f"See `journalctl -u {UNIT} -n 200`."
    if refused := lemond_log.refusals(messages):
        return Refused(refused[-1], remedy)
    found = lemond_log.diagnose_vllm(messages)
    if found is None:
        said = [scrub(line)[:_TRIM] for line in messages if line.strip()][-3:]
        return Refused(f"{UNIT} does not stay up. It said last: {' | '.join(said) or 'nothing'}", remedy)
    return Refused(
        f"vLLM does not load its model. {found.sentence()}",
        found.signature.remedy if found.signature else remedy,
    )
