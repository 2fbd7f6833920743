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
  - Before anything is downloaded it is checked that each model exists, may be had, is known to the active
    bundle's transformers and vLLM, and fits into memory and disk.
  - Downloads for the recipe vllm go on where they broke, also those of an earlier run.
  - Takes back options that it saved with a model earlier and that O(models) no longer holds.
  - Sets up a unit that loads the first model after each start of lemond.
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
  daemon:
    description:
      - What serves; empty takes what is set up on the host.
      - With V(vllm) only the first model is downloaded, and the service is started, which loads it.
    type: str
    choices: ["", lemond, vllm]
    default: ""
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
  hub_url:
    description: Address of the model hub, or of a mirror that behaves like it (C(HF_ENDPOINT)).
    type: str
    default: https://huggingface.co
  folder:
    description: >-
      Folder on the host that holds models (C(ORG/NAME/), or a copied hub cache); taken instead of the hub.
    type: str
    default: ""
  gtt_pages:
    description: Pages of 4 KiB that the GPU may map after the next boot, where that was changed.
    type: int
  stage:
    description: >-
      V(files) stops before loading, V(load) only loads (and has nothing else to change), V(all) does both.
    type: str
    choices: [all, files, load]
    default: all
  slice:
    description: >-
      Seconds after which a download returns RV(more) and RV(progress); the next call goes on. 0 for never.
    type: int
    default: 0
  fresh:
    description: Names of models to load anew, as their options were changed.
    type: list
    elements: str
    default: []
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
  description: What was or would be changed; where the module fails, what was finished before that.
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
more:
  description: That a download is not complete yet, as its slice of time is over.
  returned: success
  type: bool
progress:
  description: How far a download is, where RV(more).
  returned: success
  type: dict
  contains:
    done:
      description: Bytes that are there.
      type: int
    total:
      description: Bytes of the whole model.
      type: int
    file:
      description: The file that is downloaded.
      type: str
load_seconds:
  description: Seconds that the load of the first model took; null where it was loaded already.
  returned: success
  type: float
"""

from typing import Any

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import (
    daemon,
    hub_cache,
    lemond_config,
    model_plan,
)
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.hub import DEFAULT_URL
from ansible_collections.lemonade.deploy.plugins.module_utils.lemond_api import Lemond
from ansible_collections.lemonade.deploy.plugins.module_utils.model_run import Models
from ansible_collections.lemonade.deploy.plugins.module_utils.model_serve import ServedModel
from ansible_collections.lemonade.deploy.plugins.module_utils.module import run_module

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
    "daemon": {"type": "str", "choices": ["", "lemond", "vllm"], "default": ""},
    "endpoint": {"type": "str", "default": ""},
    "pending": {"type": "bool", "default": False},
    "hub_url": {"type": "str", "default": DEFAULT_URL},
    "folder": {"type": "str", "default": ""},
    "gtt_pages": {"type": "int"},
    "stage": {"type": "str", "choices": ["all", "files", "load"], "default": "all"},
    "slice": {"type": "int", "default": 0},
    "fresh": {"type": "list", "elements": "str", "default": []},
    "load_timeout": {"type": "int", "default": 1800},
    "pull_timeout": {"type": "int", "default": 14400},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    host, check_mode = Host(), bool(module.check_mode)
    models: Models | ServedModel
    made: list[Change] = []
    if (module.params["daemon"] or daemon.installed(host)) == daemon.VLLM:
        models = ServedModel(module.params, check_mode, host)
    else:
        client = Lemond(
            module.params["endpoint"] or lemond_config.read_endpoint(host),
            lemond_config.read_secret(host, "LEMONADE_API_KEY"),
        )
        models = Models(module.params, check_mode, host, client)
    try:
        run_module(module, model_plan.LAYER, models.plan, host, models.load, made=made)
    except hub_cache.OutOfTime as over:
        module.exit_json(
            changed=True,
            changes=[change.public() for change in models.planned],
            made=[change.public() for change in made],
            more=True,
            progress={"done": over.done, "total": over.total, "file": over.path},
        )


if __name__ == "__main__":
    main()
