# SPDX-License-Identifier: Apache-2.0
"""Models that lemond shall have: what is wanted, what it knows of them, and loading them."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import hub_cache, lemond_log
from .host import Host
from .lemond_api import Lemond, LemondSilent, LemondUnreachable
from .lemond_config import STATE_DIR
from .lemond_state import OLD as OLD_STATE
from .module import Refused

# lemond's own vLLM models and their checkpoints (server_models.json:2283-2413, lemonade e385039). Only for
# plans on a host without a running lemond; a running one is asked.
BUILT_IN = {
    "Qwen3.5-0.8B-FP16-vLLM": "Qwen/Qwen3.5-0.8B",
    "Qwen3.5-2B-FP16-vLLM": "Qwen/Qwen3.5-2B",
    "Qwen3.5-4B-FP16-vLLM": "Qwen/Qwen3.5-4B",
    "Qwen3.5-9B-FP16-vLLM": "Qwen/Qwen3.5-9B",
    "Qwen3.6-27B-FP16-vLLM": "Qwen/Qwen3.6-27B",
    "Qwen3.6-27B-FP8-vLLM-lowconc": "Qwen/Qwen3.6-27B-FP8",
    "Qwen3.6-27B-FP8-vLLM-highconc": "Qwen/Qwen3.6-27B-FP8",
    "Qwen3.6-35B-A3B-FP16-vLLM": "Qwen/Qwen3.6-35B-A3B",
    "Qwen3.6-35B-A3B-FP8-vLLM-lowconc": "Qwen/Qwen3.6-35B-A3B-FP8",
    "Qwen3.6-35B-A3B-FP8-vLLM-highconc": "Qwen/Qwen3.6-35B-A3B-FP8",
    "GLM-4.7-Flash-FP16-vLLM": "zai-org/GLM-4.7-Flash",
}


@dataclass(frozen=True)
class Wanted:
    """A model by its name in lemond. ``checkpoint`` makes it an own registration (``user.`` names)."""

    name: str
    checkpoint: str = ""
    recipe: str = "vllm"
    ctx_size: int | None = None
    args: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options to save with the model, in lemond's words."""
        given = {"ctx_size": self.ctx_size, f"{self.recipe}_args": self.args}
        return {key: value for key, value in given.items() if value is not None}


@dataclass(frozen=True)
class Known:
    """What lemond, or its files, say of a model."""

    checkpoint: str
    recipe: str
    downloaded: bool
    options: Mapping[str, Any] = field(default_factory=dict)


def wanted_from(entry: Mapping[str, Any]) -> Wanted:
    """One entry of ``models_wanted``. Own registrations get lemond's prefix ``user.``.

    A completion for the name without it answers 404 (lemonade issues 2610, 2649).
    """
    name, checkpoint = str(entry["name"]), str(entry.get("checkpoint") or "")
    if checkpoint and not name.startswith("user."):
        name = f"user.{name}"
    return Wanted(name, checkpoint, entry.get("recipe") or "vllm", entry.get("ctx_size"), entry.get("args"))


# --- what is there ---------------------------------------------------------------


def known_to(client: Lemond, wanted: Wanted) -> Known | None:
    """What a running lemond says of a model."""
    entry = client.model(wanted.name)
    if entry is None:
        return None
    return Known(
        str(entry.get("checkpoint", "")),
        str(entry.get("recipe", "")),
        bool(entry.get("downloaded")),
        entry.get("recipe_options") or {},
    )


def known_on_disk(host: Host, wanted: Wanted) -> Known | None:
    """The same by lemond's files, for a plan while no lemond runs."""
    bare = wanted.name.removeprefix("user.")
    registered = _state(host, "user_models.json").get(bare)
    options = _state(host, "recipe_options.json").get(wanted.name, {})
    if wanted.name.startswith("user."):
        if not isinstance(registered, dict):
            return None
        checkpoint, recipe = str(registered.get("checkpoint", "")), str(registered.get("recipe", ""))
    else:
        checkpoint, recipe = BUILT_IN.get(wanted.name, ""), wanted.recipe
    return Known(checkpoint, recipe, hub_cache.complete(host, checkpoint), options)


def on_disk(host: Host, checkpoint: str) -> bool:
    """Whether the hub cache holds a checkpoint, whole."""
    return hub_cache.complete(host, checkpoint)


def _state(host: Host, name: str) -> dict[str, Any]:
    """A file of lemond's state; what an older lemond left counts until it is moved (lemond_state)."""
    new = f"{STATE_DIR}/{name}"
    return _json(host, new if host.exists(new) else f"{OLD_STATE}/{name}")


def _json(host: Host, path: str) -> dict[str, Any]:
    try:
        value = json.loads(host.read(path) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def origin(wanted: Wanted, known: Known | None) -> tuple[str, str]:
    """Checkpoint and recipe of a model: its own, else what lemond says, else the built-in one's."""
    if wanted.checkpoint or known is None:
        return wanted.checkpoint or BUILT_IN.get(wanted.name, ""), wanted.recipe
    return known.checkpoint, known.recipe or wanted.recipe


# --- names -------------------------------------------------------------------------


def check_names(wanted: Iterable[Wanted], offered: Sequence[str]) -> None:
    """Raises Refused for a model that this lemond does not have and that has no checkpoint to register.

    Names changed between releases: ``Qwen3.5-0.8B-vLLM`` became ``Qwen3.5-0.8B-FP16-vLLM`` in v10.8.0.
    """
    names = [*offered, *(f"user.{name}" for name in offered)]
    for model in wanted:
        if not model.checkpoint and model.name not in names:
            near = difflib.get_close_matches(model.name, offered, n=1, cutoff=0.6)
            raise Refused(
                f"This lemond has no model {model.name}." + (f" Did you mean {near[0]}?" if near else ""),
                "Correct models_wanted, or give it a checkpoint (organisation/name) to register it. "
                "lemond hides models that do not fit into this machine's memory.",
            )


# --- loading -------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """A model that is loaded. ``seconds`` is 0 where it was loaded already."""

    name: str
    seconds: float
    already: bool


def load(
    host: Host,
    client: Lemond,
    model: Wanted,
    timeout: float,
    bundle: str,
    fresh: bool = False,
    since: float | None = None,
) -> Loaded:
    """Load a model (``timeout`` in seconds). An engine of another bundle is unloaded first.

    So is any with ``fresh``, for options that changed. ``since``: when a load that lemond is still at began
    (seconds since 1970); ours joins it. Raises Refused with the line of the engine's log that tells why.
    """
    entry = client.loaded(model.name)
    if entry is not None and entry.get("backend_alive", True):
        ours = not bundle or executable(host, int(entry.get("pid") or 0)).startswith(bundle + "/")
        if ours and not fresh:
            return Loaded(model.name, 0.0, True)
        client.post("/v1/unload", {"model_name": model.name}, 120)
    began = since or time.time()
    try:
        answer = client.post("/v1/load", {"model_name": model.name}, timeout)
    except LemondUnreachable as error:
        # lemond tries twice: the first try may have said why while the second one is still at it.
        diagnosis = lemond_log.diagnose(lemond_log.read(host, since=began))
        if diagnosis is not None and diagnosis.signature is not None:
            raise load_failure(host, model, str(error), began) from error
        if not isinstance(error, LemondSilent):
            raise Refused(
                f"lemond went away while it loaded {model.name} ({error}).",
                "See why it ended: `journalctl -u lemond -n 200`, and `journalctl -k` for a lack of memory; "
                "then run again.",
            ) from error
        raise Refused(
            f"{model.name} was not loaded after {time.time() - began:.0f} s ({error}).",
            "A first load compiles kernels and can take many minutes: raise models_load_timeout.",
        ) from error
    if not answer.ok:
        raise load_failure(host, model, answer.error, began)
    return Loaded(model.name, round(answer.seconds, 2), False)


def load_failure(host: Host, model: Wanted, said: str, began: float) -> Refused:
    """Why a load failed that *began* then (seconds since 1970): by the log, else what lemond *said*."""
    diagnosis = lemond_log.diagnose(lemond_log.read(host, since=began))
    if diagnosis is None:
        return Refused(f"{model.name}: {said}.", "See `journalctl -u lemond -n 200`.")
    remedy = diagnosis.signature.remedy if diagnosis.signature else "See `journalctl -u lemond -n 200`."
    return Refused(f"{model.name} does not load. {diagnosis.sentence()}", remedy)


def executable(host: Host, pid: int) -> str:
    """The file a process runs, "" where there is no such process."""
    return host.readlink(f"/proc/{pid}/exe") or ""
