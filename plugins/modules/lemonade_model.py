#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module lemonade_model: models of lemond, registered, downloaded, configured and loaded."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lemonade_model
short_description: Have models in Lemonade Server, loaded and warm
version_added: "0.1.0"
description:
  - Registers models that carry a checkpoint, downloads what is missing, saves their options, and loads them.
  - Loads every model that was changed, and the first one last, so that it is the one that stays warm.
    Loading counts as no change.
  - Where a load fails, the failure names the line of the engine's log that tells why.
options:
  models:
    description: The models, the most important first.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name in lemond. With O(models[].checkpoint) it gets the prefix C(user.).
        type: str
        required: true
      checkpoint:
        description: Organisation and name on the model hub; makes it an own registration.
        type: str
      recipe:
        description: lemond's recipe for it.
        type: str
        default: vllm
      ctx_size:
        description: Context length in tokens.
        type: int
      args:
        description: Further arguments for the engine.
        type: str
  endpoint:
    description: URL of lemond; empty takes it from lemond's settings on the host.
    type: str
    default: ""
  pending:
    description: >-
      That the role lemonade_server would first change what runs. Then check mode plans by the files on the
      host, as the lemond that runs now may see other models.
    type: bool
    default: false
  load_timeout:
    description: Seconds that one load may take.
    type: int
    default: 1800
  pull_timeout:
    description: Seconds that one download may take.
    type: int
    default: 14400
attributes:
  check_mode:
    support: full
    description: Predicts every change; where no lemond runs yet, by the files on the host. Loads nothing.
  diff_mode:
    support: none
    description: A model has no text to compare.
author:
  - The lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: Have a small model
  lemonade.deploy.lemonade_model:
    models:
      - name: Qwen3.5-0.8B-FP16-vLLM

- name: Register a model of the hub
  lemonade.deploy.lemonade_model:
    models:
      - name: user.SmolLM2-135M
        checkpoint: HuggingFaceTB/SmolLM2-135M-Instruct
        ctx_size: 2048
"""

RETURN = r"""
changes:
  description: What was or would be changed.
  returned: always
  type: list
  elements: dict
  contains:
    layer:
      description: The role.
      type: str
    object:
      description: What is different, without its version.
      type: str
    action:
      description: A verb.
      type: str
    detail:
      description: For people.
      type: str
models:
  description: The models that are loaded or were loaded by this run.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Its name in lemond, as a completion must use it.
      type: str
    load_seconds:
      description: How long the load took; 0 where it was loaded already.
      type: float
load_seconds:
  description: Seconds that the load of the first model took; null where it was loaded already.
  returned: success
  type: float
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import engine, lemond_config, lemond_models
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.lemond_api import Lemond
from ansible_collections.lemonade.deploy.plugins.module_utils.module import Refused, run_module

ARGUMENTS: dict[str, Any] = {
    "models": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "checkpoint": {"type": "str"},
            "recipe": {"type": "str", "default": "vllm"},
            "ctx_size": {"type": "int"},
            "args": {"type": "str"},
        },
    },
    "endpoint": {"type": "str", "default": ""},
    "pending": {"type": "bool", "default": False},
    "load_timeout": {"type": "int", "default": 1800},
    "pull_timeout": {"type": "int", "default": 14400},
}


def load_all(
    host: Host, client: Lemond, wanted: list[lemond_models.Wanted], changes: list[Change], timeout: float
) -> dict[str, Any]:
    """Load what was changed, the first model last; see DOCUMENTATION."""
    changed = {change.object for change in changes}
    bundle = engine.active_bundle(host)
    loaded = [
        lemond_models.load(host, client, model, timeout, bundle, f"model {model.name}" in changed)
        for model in reversed(wanted)
        if model is wanted[0] or f"model {model.name}" in changed
    ]
    return {
        "models": [{"name": one.name, "load_seconds": one.seconds} for one in loaded],
        "load_seconds": None if not loaded or loaded[-1].already else loaded[-1].seconds,
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = module.params
    host = Host()
    client = Lemond(
        given["endpoint"] or lemond_config.read_endpoint(host),
        lemond_config.read_secret(host, "LEMONADE_API_KEY"),
    )
    wanted = [lemond_models.wanted_from(entry) for entry in given["models"]]

    def plan() -> list[Change]:
        alive = not (module.check_mode and given["pending"]) and client.alive()
        if not alive and not module.check_mode:
            raise Refused(
                f"lemond does not answer at {client.endpoint}.", "Run the role lemonade_server first."
            )
        if alive:
            known = {model.name: lemond_models.known_to(client, model) for model in wanted}
            offered = [name for name, value in known.items() if value] + client.model_names()
            lemond_models.check_names(wanted, offered)
        else:
            known = {model.name: lemond_models.known_on_disk(host, model) for model in wanted}
        stored = {model.checkpoint: lemond_models.on_disk(host, model.checkpoint) for model in wanted}
        return lemond_models.plan(wanted, known, client, given["pull_timeout"], stored)

    def extra(changes: list[Change]) -> dict[str, Any]:
        if module.check_mode or not wanted:
            return {"models": [], "load_seconds": None}
        return load_all(host, client, wanted, changes, given["load_timeout"])

    run_module(module, lemond_models.LAYER, plan, host, extra)


if __name__ == "__main__":
    main()
