#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module vllm_by_lemond: vLLM as Lemonade Server itself installs it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_by_lemond
version_added: "0.1.0"
short_description: Have Lemonade Server install its vLLM itself
description:
  - Asks lemond (C(POST /v1/install)) for the release that its setting C(vllm.rocm_bin) names, follows the
    download, and believes what stands on the disk afterwards instead of what lemond says.
  - lemond compares no digest, restarts a broken part from zero, needs room for archive and tree, and keeps
    no previous version. M(lemonade.deploy.vllm_bundle) does not have these limits.
options:
  tag:
    description: Release tag with its family.
    type: str
    required: true
  family:
    description: Family of the host's GPU; the lock entry must be for it.
    type: str
    required: true
  lock:
    description:
      - Content of the lock file, parsed; it tells sizes.
      - Left out, the controller reads O(lock_file), where there is such a file.
    type: dict
  lock_file:
    description:
      - The lock file on the controller. One that is wrong (a key stands there twice, for instance) fails
        there, with the line.
    type: str
    default: lemonade-deploy.lock
  inventory:
    description: Name of the inventory, for the remedy in messages.
    type: str
    default: ""
  accept_unqualified:
    description: Releases (the family may be left out) that may be installed although they are known to fail.
    type: list
    elements: str
    default: []
  packages:
    description: Packages that the bundled compiler needs on the host (the C library's headers).
    type: list
    elements: str
    default: [libc6-dev]
  timeout:
    description: Seconds that the whole installation may take.
    type: int
    default: 7200
  slice:
    description: >-
      Seconds after which RV(more) and RV(progress) are returned; the installation goes on, and the next call
      follows it. 0 waits to the end.
    type: int
    default: 0
attributes:
  check_mode:
    support: full
    description: Predicts every change by the files on the host; needs no lemond.
  diff_mode:
    support: none
    description: There is no text to compare.
  platform:
    support: full
    platforms: linux
    description: Linux on x86-64.
author:
  - The lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: vLLM by lemond
  lemonade.deploy.vllm_by_lemond:
    tag: "{{ ansible_facts.lemonade_deploy.decision.release.tag }}"
    family: "{{ ansible_facts.lemonade_deploy.decision.release.family }}"
    lock_file: lemonade-deploy.lock
"""

RETURN = r"""
changes:
  description: What was, or in check mode would be, done; of a failed module what was finished before that.
  returned: when the lock file was of use
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
  description: The release that is, or in check mode would be, there.
  returned: success
  type: dict
  contains:
    tag:
      description: Release tag.
      type: str
    path:
      description: lemond's folder for it.
      type: str
    digest:
      description: Always empty; lemond compares none.
      type: str
seconds:
  description: Time that lemond took; 0 where nothing was installed.
  returned: success
  type: float
more:
  description: That the installation goes on.
  returned: success
  type: bool
progress:
  description: How far lemond is, for people; empty where it has ended.
  returned: success
  type: str
notes:
  description: What the user should know.
  returned: success
  type: list
  elements: str
failure:
  description: Layer, message and remedy.
  returned: failure
  type: dict
"""

import time
from typing import Any

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import lemond_install, vllm_home
from ansible_collections.lemonade.deploy.plugins.module_utils.bundle_lock import locked_release, unqualified
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change, result
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.lemond_install import LAYER, More, Wanted
from ansible_collections.lemonade.deploy.plugins.module_utils.lock import LockError
from ansible_collections.lemonade.deploy.plugins.module_utils.module import Refused, fail, run_module

ARGUMENTS: dict[str, dict[str, Any]] = {
    "tag": {"type": "str", "required": True},
    "family": {"type": "str", "required": True},
    "lock": {"type": "dict"},
    "lock_file": {"type": "str", "default": "lemonade-deploy.lock"},
    "inventory": {"type": "str", "default": ""},
    "accept_unqualified": {"type": "list", "elements": "str", "default": []},
    "packages": {"type": "list", "elements": "str", "default": ["libc6-dev"]},
    "timeout": {"type": "int", "default": 7200},
    "slice": {"type": "int", "default": 0},
}
NOTE = "vLLM was installed by lemond, which compares no digest with the lock file"


def main() -> None:
    """Read the arguments, find the release in the lock, plan and carry out."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    asked = module.params
    host, began = Host(), time.monotonic()
    try:
        release = locked_release(
            asked["lock"], asked["lock_file"], asked["tag"], asked["family"], asked["inventory"]
        )
        remark = unqualified(release, asked["accept_unqualified"])
    except Refused as refusal:
        fail(module, LAYER, refusal.found, refusal.remedy)
        return
    except LockError as error:
        fail(
            module,
            LAYER,
            str(error),
            "Correct the lock file, or write it anew with `lemonade-deploy depot lock`.",
        )
        return
    wanted = Wanted(release, asked["timeout"], tuple(asked["packages"]))
    seconds = asked["slice"] or asked["timeout"] + lemond_install.GRACE
    first: list[Change] = []
    made: list[Change] = []

    def plan() -> list[Change]:
        changes = lemond_install.plan(host, wanted, seconds)
        first.extend(changes if not first else [])
        return changes

    def extra(changes: list[Change]) -> dict[str, Any]:
        notes = ([remark] if remark else []) + ([NOTE] if changes else [])
        bundle = {"tag": release.tag, "path": vllm_home.lemond_folder(host), "digest": ""}
        took = time.monotonic() - began if changes and not module.check_mode else 0.0
        return {"bundle": bundle, "seconds": round(took, 1), "more": False, "progress": "", "notes": notes}

    try:
        run_module(module, LAYER, plan, host, extra, made=made)
    except More as more:
        told = {**extra(first), "more": True, "progress": more.state.text()}
        module.exit_json(**result(first, **told), made=[change.public() for change in made])


if __name__ == "__main__":
    main()
