#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module chat_completion: ask a model through lemond, and look at who answered."""

from __future__ import annotations

DOCUMENTATION = r"""
module: chat_completion
short_description: Prove that the endpoint answers, by a real chat completion
version_added: "0.1.0"
description:
  - Asks for a chat completion through the daemon (lemond, or vLLM itself) and demands HTTP 200, text (content
    or reasoning), a finish reason, counted tokens, and the right model.
  - Demands that lemond runs the model by O(recipe), and that the engine's process belongs to the service
    and is a program of the active bundle.
  - Where an API key is set, demands that a request without it is refused.
  - Changes nothing.
options:
  model:
    description: Name in lemond; an own registration may be named without C(user.).
    type: str
    required: true
  prompt:
    description: What to ask.
    type: str
    default: What is 2+2?
  max_tokens:
    description: Limit of the answer; a reasoning model needs 256 and more.
    type: int
    default: 256
  timeout:
    description: Seconds the answer may take, a load of the model included.
    type: int
    default: 1800
  recipe:
    description: The recipe that must answer.
    type: str
    default: vllm
  endpoint:
    description: URL of lemond; empty takes it from lemond's settings on the host.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Asks nothing, as what would answer may not be there yet.
  diff_mode:
    support: none
    description: There is nothing to compare.
author:
  - The lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: Ask the model
  lemonade.deploy.chat_completion:
    model: Qwen3.5-0.8B-FP16-vLLM
    prompt: What is 2+2?
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
inference:
  description: The answer; null in check mode.
  returned: success
  type: dict
  contains:
    model:
      description: The model that answered.
      type: str
    content:
      description: Its content, or its reasoning where there is no content.
      type: str
    finish_reason:
      description: Why it ended.
      type: str
    prompt_tokens:
      description: Tokens of the question.
      type: int
    completion_tokens:
      description: Tokens of the answer.
      type: int
    load_seconds:
      description: Null here; the module lemonade_model knows.
      type: float
    seconds:
      description: Wall clock.
      type: float
    tokens_per_second:
      description: Tokens of the answer by wall clock.
      type: float
engine:
  description: The process that answered.
  returned: success
  type: dict
  contains:
    pid:
      description: Its number.
      type: int
    executable:
      description: The program.
      type: str
    bundle:
      description: The active bundle's folder.
      type: str
"""

from typing import Any

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import (
    completion,
    daemon,
    engine,
    lemond_config,
)
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.lemond_api import Lemond
from ansible_collections.lemonade.deploy.plugins.module_utils.module import Refused, run_module

ARGUMENTS: dict[str, Any] = {
    "model": {"type": "str", "required": True},
    "prompt": {"type": "str", "default": "What is 2+2?"},
    "max_tokens": {"type": "int", "default": 256, "no_log": False},
    "timeout": {"type": "int", "default": 1800},
    "recipe": {"type": "str", "default": "vllm"},
    "endpoint": {"type": "str", "default": ""},
}


def prove_vllm(host: Host, client: Lemond, given: dict[str, Any]) -> dict[str, Any]:
    """The same where vLLM itself is the daemon. Raises Refused, LemondUnreachable."""
    model, unit = completion.served_name(client, given["model"]), daemon.UNITS[daemon.VLLM]
    answer = completion.ask(client, model, given["prompt"], given["max_tokens"], given["timeout"], unit)
    process = engine.read_daemon(host, unit)
    engine.check(process, unit)
    return {"inference": answer.public(), "engine": process.public()}


def prove(host: Host, client: Lemond, given: dict[str, Any]) -> dict[str, Any]:
    """The completion and the engine behind it. Raises Refused, LemondUnreachable."""
    model = completion.full_name(client, given["model"])
    answer = completion.ask(client, model, given["prompt"], given["max_tokens"], given["timeout"])
    entry = client.loaded(model)
    if entry is None or entry.get("recipe") != given["recipe"]:
        recipe = entry.get("recipe") if entry else "none"
        raise Refused(
            f"{model} answers, but by lemond's recipe {recipe}, not {given['recipe']}.",
            "Choose a model of that recipe in models_wanted.",
        )
    process = engine.read(host, entry)
    engine.check(process)
    return {"inference": answer.public(), "engine": process.public()}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = module.params
    host = Host()
    key = lemond_config.read_secret(host, "LEMONADE_API_KEY")
    client = Lemond(given["endpoint"] or daemon.endpoint(host), key)

    def extra(_changes: list[Any]) -> dict[str, Any]:
        if module.check_mode:
            return {"inference": None, "engine": None}
        name = daemon.installed(host) or daemon.LEMOND
        with completion.answered(daemon.UNITS[name]):
            completion.check_key(client.endpoint, key)
            return (prove_vllm if name == daemon.VLLM else prove)(host, client, given)

    run_module(module, "verify", lambda: [], host, extra)


if __name__ == "__main__":
    main()
