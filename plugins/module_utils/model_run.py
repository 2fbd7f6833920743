# SPDX-License-Identifier: Apache-2.0
"""What the module lemonade_model does with its arguments: plan, then loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import engine, hub_cache, lemond_models, model_files, model_options, model_plan, user_values, warm_up
from .change import Change
from .host import Host
from .lemond_api import Lemond
from .refusal import Refused


class Models:
    """The module lemonade_model on one host; *given* are its arguments."""

    def __init__(self, given: Mapping[str, Any], check_mode: bool, host: Host, client: Lemond) -> None:
        self._given = given
        self._check_mode = check_mode
        self._host = host
        self._client = client
        self.wanted = [lemond_models.wanted_from(entry) for entry in self._given["models"]]
        self.planned: list[Change] = []

    def plan(self) -> list[Change]:
        """All changes; raises Refused for a model that cannot work here."""
        user_values.demand({user_values.MODELS: self._given["models"]})
        pending = self._check_mode and self._given["pending"]
        alive = not pending and self._client.alive()
        if not alive and not self._check_mode:
            raise Refused(
                f"lemond does not answer at {self._client.endpoint}.", "Run the role lemonade_server first."
            )
        known = self._known(alive)
        changes = model_plan.plan(
            self.wanted, known, self._client, self._given["pull_timeout"], self._files(known, pending)
        )
        changes += model_plan.clear_options(self._host, self._client, self.wanted, alive)
        if self.wanted:
            changes += warm_up.plan(self._host, self.wanted[0].name, self._given["load_timeout"])
        self.planned = self.planned or changes
        return changes

    def _known(self, alive: bool) -> dict[str, lemond_models.Known | None]:
        if not alive:
            return {model.name: lemond_models.known_on_disk(self._host, model) for model in self.wanted}
        known = {model.name: lemond_models.known_to(self._client, model) for model in self.wanted}
        offered = [name for name, value in known.items() if value] + self._client.model_names()
        lemond_models.check_names(self.wanted, offered)
        return known

    def _files(self, known: dict[str, lemond_models.Known | None], pending: bool) -> model_plan.Files:
        given = self._given
        store = model_files.store(
            self._host, given["hub_url"], given["folder"], given["gtt_pages"], pending, given["slice"]
        )
        named = [(model, *lemond_models.origin(model, known[model.name])) for model in self.wanted]
        ours = [
            (model, checkpoint) for model, checkpoint, recipe in named if model_files.ours(recipe, checkpoint)
        ]
        repositories = model_files.check(self._host, ours, store)
        stored = {
            checkpoint: hub_cache.complete(self._host, checkpoint) for _model, checkpoint, _recipe in named
        }
        downloads = {
            checkpoint: model_plan.Download(repository, store)
            for checkpoint, repository in repositories.items()
        }
        return model_plan.Files(stored, downloads)

    def load(self, changes: list[Change]) -> dict[str, Any]:
        """Load what was changed, the first model last; see the module."""
        if self._check_mode or not self.wanted:
            return {"models": [], "load_seconds": None, "more": False}
        model_options.remember(self._host, self.wanted)
        if self._given["stage"] == "files":
            return {"models": [], "load_seconds": None, "more": False}
        fresh = {change.object for change in changes} | {f"model {name}" for name in self._given["fresh"]}
        if any(self._unseen(model) for model in self.wanted):
            model_plan.rescan(self._host, self._client, self.wanted)
        first = self.wanted[0]
        before = warm_up.await_end(self._host, self._given["load_timeout"])
        if before and before.failed and not fresh and self._client.loaded(first.name) is None:
            raise lemond_models.load_failure(self._host, first, "it does not load", before.began)
        bundle = engine.active_bundle(self._host)
        loaded = [
            lemond_models.load(
                self._host,
                self._client,
                model,
                self._given["load_timeout"],
                bundle,
                f"model {model.name}" in fresh,
                before.began if before and before.unfinished and model is first else None,
            )
            for model in reversed(self.wanted)
            if model is first or f"model {model.name}" in fresh
        ]
        seconds = None if loaded[-1].already else loaded[-1].seconds
        if before and (loaded[-1].already or before.unfinished):
            # The unit has just loaded it, or had begun to.
            seconds = round(before.seconds + (seconds or 0.0), 2)
        return {
            "models": [{"name": one.name, "load_seconds": one.seconds} for one in loaded],
            "load_seconds": seconds,
            "more": False,
        }

    def _unseen(self, model: lemond_models.Wanted) -> bool:
        """Whether a model's files are there unnoticed: lemond would ask the hub for them again."""
        known = lemond_models.known_to(self._client, model)
        return known is not None and not known.downloaded and hub_cache.complete(self._host, known.checkpoint)
