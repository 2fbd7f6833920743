#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module model_bench: how fast models load and answer through lemond, measured on the host itself."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_bench
short_description: Measure how fast models load and answer
version_added: "0.1.0"
description:
  - For each model a cold load (its files are not in the page cache), a warm one, time to first token, tokens
    per second by wall clock, and throughput and latency against the number of clients. Every run is returned.
  - Tokens are those of the answer's usage, never assumed. Each request differs, so no cached prefix helps.
  - A model that fails is returned with the cause that the engine's log tells; the others are measured all the
    same.
  - Where vLLM itself is the daemon, a load is a start of its service.
  - Unloads what is loaded, and loads it again at the end. Requests of others disturb the numbers, and are
    disturbed.
  - Where it was stopped it goes on with the models that are not measured yet, as long as models, method,
    kernel, bundle and lemond are the same.
options:
  models:
    description: Names in lemond, C(user.) may be left out. Empty takes the loaded ones.
    type: list
    elements: str
    default: []
  all:
    description: Take every downloaded model that can chat, where O(models) is empty.
    type: bool
    default: false
  runs:
    description: Measured requests, one after the other.
    type: int
    default: 5
  warmup:
    description: Requests before that, which do not count.
    type: int
    default: 2
  max_tokens:
    description: Limit of each answer in tokens.
    type: int
    default: 200
  concurrency:
    description: Numbers of clients at once; each sends two requests in turn. Empty measures none.
    type: list
    elements: int
    default: [1, 2, 4, 8, 16]
  prompt:
    description: What to ask; empty asks for a long story.
    type: str
    default: ""
  load_timeout:
    description: Seconds that a load may take.
    type: int
    default: 1800
  timeout:
    description: Seconds to wait for each piece of an answer.
    type: int
    default: 600
  fresh:
    description: Measure all models, also those that a stopped burn test has measured already.
    type: bool
    default: false
  endpoint:
    description: URL of lemond; empty takes it from lemond's settings on the host.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Measures nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
author:
  - The lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: Measure a model
  lemonade.deploy.model_bench:
    models: [Qwen3.5-0.8B-FP16-vLLM]
    concurrency: [1, 4]
"""

RETURN = r"""
changes:
  description: Always empty.
  returned: always
  type: list
  elements: dict
bench:
  description: What was measured; null in check mode.
  returned: success
  type: dict
  contains:
    environment:
      description: System, kernel, bundle, lemond.
      type: dict
    method:
      description: How it was measured.
      type: dict
    models:
      description: A dictionary for each model with its loads, runs, summary, concurrency and failure.
      type: list
      elements: dict
    resumed:
      description: Models whose numbers come from the burn test that was stopped.
      type: list
      elements: str
    restored:
      description: Models that were loaded before and are so again.
      type: list
      elements: str
"""

from typing import Any

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import (
    bench,
    bench_session,
    daemon,
    lemond_config,
)
from ansible_collections.lemonade.deploy.plugins.module_utils.bench_request import PROMPT
from ansible_collections.lemonade.deploy.plugins.module_utils.bench_served import Served
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.lemond_api import Lemond
from ansible_collections.lemonade.deploy.plugins.module_utils.module import Refused, run_module

ARGUMENTS: dict[str, Any] = {
    "models": {"type": "list", "elements": "str", "default": []},
    "all": {"type": "bool", "default": False},
    "runs": {"type": "int", "default": 5},
    "warmup": {"type": "int", "default": 2},
    "max_tokens": {"type": "int", "default": 200, "no_log": False},
    "concurrency": {"type": "list", "elements": "int", "default": [1, 2, 4, 8, 16]},
    "prompt": {"type": "str", "default": ""},
    "load_timeout": {"type": "int", "default": 1800},
    "timeout": {"type": "int", "default": 600},
    "fresh": {"type": "bool", "default": False},
    "endpoint": {"type": "str", "default": ""},
}


def method_of(given: dict[str, Any]) -> bench.Method:
    """The method; raises Refused for numbers that measure nothing."""
    numbers = [given["runs"], given["max_tokens"], *given["concurrency"]]
    if min(numbers) < 1 or given["warmup"] < 0:
        raise Refused("Runs, tokens and clients are counted from 1, warm-ups from 0.", "Correct the numbers.")
    return bench.Method(
        given["runs"],
        given["warmup"],
        given["max_tokens"],
        tuple(given["concurrency"]),
        given["prompt"] or PROMPT,
        given["load_timeout"],
        given["timeout"],
    )


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = module.params
    host = Host()
    key = lemond_config.read_secret(host, "LEMONADE_API_KEY")
    client = Lemond(given["endpoint"] or lemond_config.read_endpoint(host), key)
    if not given["endpoint"] and daemon.installed(host) == daemon.VLLM:
        client = Served(host, key)

    def extra(_changes: list[Any]) -> dict[str, Any]:
        if module.check_mode:
            return {"bench": None}
        method = method_of(given)
        if not client.alive():
            raise Refused(f"Nothing answers at {client.endpoint}.", "Run site.yml first.")
        names = bench_session.chosen(client, given["models"], given["all"])
        measuring = bench.Bench(host, client, method, key)
        with bench_session.alone(host):
            return {"bench": bench_session.run(host, client, measuring, names, method, given["fresh"])}

    run_module(module, "bench", lambda: [], host, extra)


if __name__ == "__main__":
    main()
