# SPDX-License-Identifier: Apache-2.0
"""A model's files on the host: what must be true before a byte of it is downloaded, and the download.

For the recipe vllm the kit downloads itself, as lemond's own download does not go on where it broke
(lemonade issue 1546) and knows no folder. Other recipes pick single files of a repository: lemond's pull.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import bundle_models, disk, engine, hub_cache, lemond_config, model_fit, paths
from .fetch import FetchError
from .host import Host
from .hub import Hub, Repository
from .hub_folder import Folder
from .lemond_service import HF_HOME
from .refusal import Refused

if TYPE_CHECKING:
    from .lemond_models import Wanted

SPARE = disk.GIB  # bytes that stay free: compiled kernels and logs need a place, too
_DEFAULTS_FILE = "/etc/default/lemond"  # the user's own; lemond reads it as well


@dataclass(frozen=True)
class Store:
    """Where models come from and how long one part of a download may take (s, 0: as long as it takes).

    ``pending`` says that roles before this one have yet to change the host (check mode), so that bundle,
    token and settings may be others than those on the disk. ``gtt_pages``: see model_fit.gpu_memory.
    """

    source: hub_cache.Source
    gtt_pages: int | None = None
    pending: bool = False
    slice_seconds: float = 0.0
    found: dict[str, Repository] = field(default_factory=dict)


def store(
    host: Host, url: str, folder: str, gtt_pages: int | None, pending: bool, slice_seconds: float
) -> Store:
    """The source that the variables name. The token comes from the environment files of the service.

    It goes to nobody in the clear: a mirror that is asked by http gets none.
    """
    secret = token(host) if url.startswith("https://") else ""
    source: hub_cache.Source = Folder(host, folder) if folder else Hub(url, secret)
    return Store(source, gtt_pages, pending, slice_seconds)


def token(host: Host) -> str:
    """HF_TOKEN of the service: our environment file, else the user's own."""
    return lemond_config.read_secret(host, "HF_TOKEN") or lemond_config.read_plain(
        host, _DEFAULTS_FILE, "HF_TOKEN"
    )


def ours(recipe: str, checkpoint: str) -> bool:
    """Whether the kit downloads it: whole repositories for vLLM, not one file of many (``ORG/NAME:FILE``)."""
    return recipe == "vllm" and bool(checkpoint) and ":" not in checkpoint


def check(host: Host, wanted: Sequence[tuple[Wanted, str]], place: Store) -> dict[str, Repository]:
    """By checkpoint the repositories to download: those of *wanted* (with their checkpoints) not there yet.

    Raises Refused for the first that cannot work here, before anything is downloaded: no such
    repository, no right to it, unknown to the bundle, too large for memory or disk.
    """
    bundle = "" if place.pending else engine.active_bundle(host)
    known = bundle_models.read(host, bundle)
    memory = model_fit.gpu_memory(host, place.gtt_pages)
    defaults = _defaults(host)
    found: dict[str, Repository] = {}
    for model, checkpoint in wanted:
        if hub_cache.complete(host, checkpoint):
            continue
        repository = place.source.repository(checkpoint)
        hub_cache.check_weights(repository)
        if not place.pending or token(host):
            place.source.check_access(repository)
        config = _config(place, repository)
        if known is not None and config is not None:
            bundle_models.check(known, checkpoint, config, bundle)
        given = model_fit.arguments(str(defaults["args"]), model.args)
        weights = model_fit.weight_bytes(
            [(file.path, file.size) for file in repository.files], hub_cache.WEIGHTS
        )
        ctx_size = model.ctx_size if model.ctx_size is not None else int(defaults["ctx_size"])
        model_fit.check(model.name, weights, config, given, ctx_size, memory)
        found[checkpoint] = repository
    _check_disk(host, list(found.values()))
    return found


def _config(place: Store, repository: Repository) -> str | None:
    try:
        return place.source.text(repository, "config.json")
    except FetchError as error:
        if place.pending and error.status in (401, 403):
            return None  # the token is not on the host yet
        raise


def _defaults(host: Host) -> dict[str, Any]:
    """Arguments and context size that lemond gives to every model."""
    try:
        told = json.loads(host.read(paths.LEMOND_DEFAULTS) or "{}")
    except ValueError:
        told = {}
    return {"args": (told.get("vllm") or {}).get("args", ""), "ctx_size": told.get("ctx_size", -1)}


def _check_disk(host: Host, repositories: Sequence[Repository]) -> None:
    need = sum(hub_cache.missing_bytes(host, repository) for repository in repositories)
    free = disk.free_bytes(host, HF_HOME)
    if need and need + SPARE > free:
        names = ", ".join(repository.name for repository in repositories)
        raise Refused(
            f"{names}: {model_fit.gib(need)} to download, {HF_HOME} has {model_fit.gib(free)} free "
            f"({model_fit.gib(SPARE)} must stay).",
            f"Free space below {HF_HOME}, or mount a larger disk there.",
        )


def fetch(host: Host, repository: Repository, place: Store) -> None:
    """Bring it here. Raises OutOfTime after ``slice_seconds``: the next call goes on."""
    deadline = time.monotonic() + place.slice_seconds if place.slice_seconds else None
    with hub_cache.service_identity():
        hub_cache.fetch(host, place.source, repository, hub_cache.Limits(deadline))
