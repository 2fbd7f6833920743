# SPDX-License-Identifier: Apache-2.0
"""What the module lemonade_model does where vLLM itself is the daemon: the download, then the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import daemon, lemond_service, model_files, model_plan, paths, systemd, vllm_service
from .change import Call, Change
from .host import Host
from .hub import Repository
from .lemond_models import wanted_from
from .refusal import Refused
from .vllm_arguments import Served


class ServedModel:
    """The module lemonade_model on one host with daemon vllm; *given* are its arguments."""

    def __init__(self, given: Mapping[str, Any], check_mode: bool, host: Host) -> None:
        self._given = given
        self._check_mode = check_mode
        self._host = host
        self.planned: list[Change] = []

    def plan(self) -> list[Change]:
        """Download of the first model, start of the service; raises Refused for one that cannot work."""
        host, pending = self._host, bool(self._check_mode and self._given["pending"])
        model = vllm_service.model_from(self._given["models"], -1, "")
        there = vllm_service.model_there(host, model.checkpoint)
        changes = [] if there else self._downloads(model, pending)
        if not pending:
            self._check_unit(model)
        # Where it is there already, the role lemonade_server starts it.
        if not (pending and there):
            changes += vllm_service.starts(
                model_plan.LAYER,
                systemd.show(host, vllm_service.UNIT),
                systemd.show(host, lemond_service.UNIT),
                daemon.endpoint(host),
                self._given["load_timeout"],
                due=pending or host.exists(paths.LEMOND_RESTART_DUE),
            )
        self.planned = self.planned or changes
        return changes

    def _downloads(self, model: Served, pending: bool) -> list[Change]:
        given = self._given
        if model.checkpoint.startswith("/"):
            raise Refused(
                f"{model.checkpoint} holds no weights of {model.name}.",
                "Put the model's files there (config.json, *.safetensors, tokenizer …), readable for all.",
            )
        store = model_files.store(
            self._host, given["hub_url"], given["folder"], given["gtt_pages"], pending, given["slice"]
        )
        wanted = wanted_from(given["models"][0])
        found = model_files.check(self._host, [(wanted, model.checkpoint)], store)
        return [self._download(model, repository, store) for repository in found.values()]

    def _download(self, model: Served, repository: Repository, store: model_files.Store) -> Change:
        detail = f"{repository.name}, {repository.size / 1e9:.2f} GB"
        fetch = Call(lambda host: model_files.fetch(host, repository, store))
        return Change(model_plan.LAYER, f"model {model.name}", "pull", detail, operations=(fetch,))

    def _check_unit(self, model: Served) -> None:
        served = daemon.served_name(self._host)
        if served != model.name:
            raise Refused(
                f"The service serves {served or 'no model'}, the first of models_wanted is {model.name}.",
                "Run the role lemonade_server as well: it writes the service's command line.",
            )

    def load(self, changes: list[Change]) -> dict[str, Any]:
        """Nothing to do: the start, which has just been waited for, has loaded it."""
        started = any(change.object == vllm_service.OBJECT for change in changes)
        seconds = vllm_service.seconds_since_start(self._host) if started and not self._check_mode else None
        name = vllm_service.model_from(self._given["models"], -1, "").name
        models = [] if self._check_mode else [{"name": name, "load_seconds": seconds or 0.0}]
        return {"models": models, "load_seconds": seconds, "more": False}
