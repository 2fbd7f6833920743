#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module gpu_memory: GTT limit, the service's user with its groups, udev rules."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_memory
short_description: Give the GPU its share of memory and the service access to the GPU
version_added: "0.1.0"
description:
  - Writes the limit of system memory an APU may use (GTT) as modprobe options for C(ttm), or for C(amdttm)
    where AMD's DKMS driver is wanted. It counts from the next initramfs and boot; role activate proves it.
  - Creates the service's system user where it is missing, and puts it into the groups C(render) and C(video).
  - Writes udev rules that give C(/dev/kfd) and the render nodes to group C(render).
  - Other places that set a limit (files, kernel command line) are reported as findings.
options:
  pages:
    description: The limit in pages of 4 KiB. Left out, the limit is left alone and a file of the kit removed.
    type: int
  origin:
    description: Which driver is wanted; it decides the module that takes the options.
    type: str
    choices: [in-tree, dkms]
    default: in-tree
  user:
    description: The service's user.
    type: str
    default: lemonade
attributes:
  check_mode:
    support: full
    description: Predicts every change.
  diff_mode:
    support: full
    description: Shows the files it changes.
author:
  - The lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: Let the GPU use 96 GiB
  lemonade.deploy.gpu_memory:
    pages: 25165824
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
findings:
  description: Other places that set a limit.
  returned: success
  type: list
  elements: dict
activation:
  description: What must take effect at boot.
  returned: success
  type: dict
  contains:
    initramfs:
      description: Whether initramfs images must be rebuilt.
      type: bool
    reboot:
      description: Why a reboot is needed; empty where none is.
      type: list
      elements: str
    kernel:
      description: Always empty here.
      type: str
"""

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import memory, memory_plan
from ansible_collections.lemonade.deploy.plugins.module_utils.activation import Due
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.memory_plan import MemoryWish
from ansible_collections.lemonade.deploy.plugins.module_utils.module import SYSTEM_LOCK, run_module


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "pages": {"type": "int"},
            "origin": {"type": "str", "choices": ["in-tree", "dkms"], "default": "in-tree"},
            "user": {"type": "str", "default": "lemonade"},
        },
        supports_check_mode=True,
    )
    host = Host()
    name = memory.ttm_module(module.params["origin"])
    wish = MemoryWish(module.params["pages"], name, module.params["user"])
    due: list[Due] = []

    def plan() -> list[Change]:
        state = memory_plan.read(host, wish)
        due.append(memory_plan.due(state, wish))
        return memory_plan.plan(state, wish)

    def extra(_changes: list[Change]) -> dict:
        rivals = memory.rivals(host, wish.module, wish.pages) if wish.pages is not None else []
        findings = [memory.rival_finding(rival) for rival in rivals]
        return {"activation": due[0].public(), "findings": findings}

    run_module(module, memory_plan.LAYER, plan, host, extra, SYSTEM_LOCK)


if __name__ == "__main__":
    main()
