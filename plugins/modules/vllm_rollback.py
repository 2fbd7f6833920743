#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module vllm_rollback: back to the previous vLLM bundle that is still on the host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_rollback
version_added: "0.1.0"
short_description: Make the previous vLLM ROCm bundle the current one again
description:
  - Swaps the link C(current) to the bundle that was current before, restarts Lemonade Server and waits until
    it answers. Nothing is fetched or unpacked, so it takes seconds.
  - Called again, it changes nothing. To go further back, or forward again, name the bundle.
options:
  to:
    description: Release tag or folder of the bundle to go to. Empty means the one that was current before.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Predicts every change.
  diff_mode:
    support: full
    description: Shows which bundle is current before and after.
  platform:
    support: full
    platforms: linux
    description: Linux on x86-64.
author:
  - The lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: Back to the previous bundle
  lemonade.deploy.vllm_rollback:

- name: To a certain one
  lemonade.deploy.vllm_rollback:
    to: vllm0.22.1-rocm7.13.0-gfx1151
"""

RETURN = r"""
changes:
  description: What was, or in check mode would be, done; of a failed module what was finished before that.
  returned: always
  type: list
  elements: dict
  contains:
    layer:
      description: Always C(vllm_rocm).
      type: str
    object:
      description: What is changed, without a version.
      type: str
    action:
      description: A verb.
      type: str
    detail:
      description: For people.
      type: str
bundle:
  description: The bundle that is, or in check mode would be, current.
  returned: success
  type: dict
  contains:
    tag:
      description: Release tag.
      type: str
    path:
      description: Folder of this version on the host.
      type: str
    digest:
      description: Digest of the tree's manifest, after C(sha256:).
      type: str
failure:
  description: Layer, message and remedy.
  returned: failure
  type: dict
"""

from typing import Any

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import bundle_rollback
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.module import run_module

ARGUMENTS: dict[str, dict[str, Any]] = {"to": {"type": "str", "default": ""}}


def main() -> None:
    """Read the argument, plan and carry out."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    host, to = Host(), module.params["to"]
    plan = bundle_rollback.planner(host, to)

    def extra(changes: list[Change]) -> dict[str, Any]:
        state = bundle_rollback.observe(host)
        # In check mode the link still names the bundle that would be left.
        goal = to if module.check_mode and changes else state.current or ""
        return {"bundle": bundle_rollback.public(bundle_rollback.target(state, goal))}

    run_module(module, bundle_rollback.LAYER, plan, host, extra)


if __name__ == "__main__":
    main()
