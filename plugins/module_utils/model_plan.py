# SPDX-License-Identifier: Apache-2.0
"""What to change so that lemond has the wanted models: downloads, registrations, options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from . import model_files, model_options
from .change import Call, Change
from .host import Host
from .hub import Repository
from .lemond_api import Lemond, LemondUnreachable, wait_alive
from .lemond_models import Known, Wanted, known_on_disk, known_to
from .lemond_service import UNIT
from .module import Refused

LAYER = "models"


@dataclass(frozen=True)
class Download:
    """A repository that the kit downloads, and where it comes from."""

    repository: Repository
    store: model_files.Store


@dataclass(frozen=True)
class Files:
    """By checkpoint: whether its files are on the disk, and the downloads of those that are not."""

    stored: Mapping[str, bool]
    downloads: Mapping[str, Download] = field(default_factory=dict)


def plan(
    wanted: Sequence[Wanted],
    known: Mapping[str, Known | None],
    client: Lemond,
    pull_timeout: float,
    files: Files,
) -> list[Change]:
    """Downloads, registrations and options. Loading is no change: it leaves nothing on the disk.

    Downloads come first: a registration makes lemond look at the disk again.
    """
    pulls, others = [], []
    for model in wanted:
        current = known.get(model.name)
        new = bool(model.checkpoint) and (
            current is None or (current.checkpoint, current.recipe) != (model.checkpoint, model.recipe)
        )
        checkpoint = model.checkpoint or (current.checkpoint if current else "")
        if new:
            others.append(_change(model, "register", model.checkpoint, client))
        if checkpoint in files.downloads:
            pulls.append(_download(model, files.downloads[checkpoint], client, wanted))
        elif not _there(model, current, files.stored.get(checkpoint, False), new):
            # lemond must know a model to pull it.
            others.append(_change(model, "pull", checkpoint, client, pull_timeout))
        saved = current.options if current else {}
        if any(saved.get(key) != value for key, value in model.options.items()):
            detail = ", ".join(f"{key}={value}" for key, value in model.options.items())
            others.append(_change(model, "configure", detail, client))
    return [*pulls, *others]


def _there(model: Wanted, current: Known | None, stored: bool, new: bool) -> bool:
    """Whether a model's files are on the host. lemond looks only now and then; for ours the disk counts."""
    if new:
        return stored
    known = current is not None and current.downloaded
    recipe = current.recipe if current and not model.checkpoint else model.recipe
    return known or (recipe == "vllm" and stored)


def _download(model: Wanted, download: Download, client: Lemond, wanted: Sequence[Wanted]) -> Change:
    """A download by the kit, and lemond told of it. Raises OutOfTime while it is applied."""

    def apply(host: Host) -> None:
        model_files.fetch(host, download.repository, download.store)
        if not model.checkpoint:
            rescan(host, client, wanted)

    detail = f"{download.repository.name}, {download.repository.size / 1e9:.2f} GB"
    return Change(LAYER, f"model {model.name}", "pull", detail, operations=(Call(apply),))


def rescan(host: Host, client: Lemond, wanted: Sequence[Wanted]) -> None:
    """Make lemond look at the disk again, which it does when a model is registered, and when it starts.

    Registering the same once more changes nothing else (tried on 2026.39).
    """
    for model in wanted:
        if model.checkpoint and client.model(model.name) is not None:
            _change(model, "register", model.checkpoint, client).operations[0].apply(host)
            return
    host.run(["systemctl", "restart", UNIT])
    if not wait_alive(client, lambda: True, 60):
        raise Refused("lemond does not answer after a restart.", "See `journalctl -u lemond -n 50`.")


def clear_options(host: Host, client: Lemond, wanted: Sequence[Wanted], alive: bool) -> list[Change]:
    """Options of ours that models_wanted no longer holds."""
    before = model_options.remembered(host)
    saved: dict[str, Mapping[str, Any]] = {}
    for name in before:
        told = known_to(client, Wanted(name)) if alive else known_on_disk(host, Wanted(name))
        saved[name] = told.options if told else {}
    return [
        _change(Wanted(name), "clear options", ", ".join(options), client, body=options)
        for name, options in model_options.stale(before, wanted, saved).items()
    ]


def _change(
    model: Wanted,
    action: str,
    detail: str,
    client: Lemond,
    timeout: float = 60,
    body: Mapping[str, Any] | None = None,
) -> Change:
    options = f"/v1/models/{quote(model.name, safe='')}/options"
    path, given = {
        "register": (
            "/v1/models/register",
            {"model_name": model.name, "checkpoint": model.checkpoint, "recipe": model.recipe},
        ),
        "pull": ("/v1/pull", {"model_name": model.name, "stream": False}),
        "configure": (options, model.options),
        "clear options": (options, body),
    }[action]

    def apply(_host: Host) -> None:
        try:
            answer = client.post(path, given, timeout)
        except LemondUnreachable as error:
            raise Refused(f"{model.name}: {action}: {error}", "See `journalctl -u lemond -n 50`.") from error
        if not answer.ok:
            raise Refused(f"{model.name}: {action}: {answer.error}", _pull_remedy(answer.error))

    return Change(LAYER, f"model {model.name}", action, detail, operations=(Call(apply),))


def _pull_remedy(error: str) -> str:
    if "not found or not accessible" in error or "401" in error or "403" in error:
        return "Check the checkpoint's name; a gated model needs its licence and lemonade_server_hf_token."
    return "See `journalctl -u lemond -n 50`."
