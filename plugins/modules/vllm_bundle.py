#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module vllm_bundle: the vLLM ROCm bundle of one release, verified, behind an atomic link."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_bundle
version_added: "0.1.0"
short_description: Lay down a vLLM ROCm bundle, verified, and make it the current one
description:
  - Fetches the bundle of one release tag from its split parts or its single archive, compares every part
    with the sha256 of the lock file while it streams, unpacks it beside the final folder, checks it without
    starting the GPU, and only then gives it its name and swaps the link C(current).
  - Killed or disconnected at any point, the host has the old bundle or the new one; the next run goes on
    by range from the parts that are there.
  - Installs the packages that the bundled compiler needs, writes the launcher that Lemonade starts, keeps
    previous bundles, and removes older ones unless a running process still uses them.
  - On a host where all of this is done already it reads one record and a few file sizes, no file of the
    bundle.
options:
  tag:
    description: Release tag with its family, for example C(vllm0.22.1-rocm7.13.0-gfx1151). Never C(latest).
    type: str
    required: true
  family:
    description: Family of the host's GPU; the lock entry must be for it.
    type: str
    required: true
  lock:
    description:
      - Content of the lock file, parsed; the only source of digests.
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
  base_url:
    description: Where releases are; the tag and the asset's name are appended.
    type: str
    default: https://github.com/lemonade-sdk/vllm-rocm/releases/download
  mirrors:
    description: Further servers in the layout of O(base_url).
    type: list
    elements: str
    default: []
  depot_url:
    description: A depot (C(lemonade-deploy depot serve)), which sends zstd chunks. Empty for none.
    type: str
    default: ""
  depot_token:
    description: The depot's token.
    type: str
    default: ""
  sources:
    description:
      - Which places are used, and in which order. C(upstream) is O(base_url).
      - One that cannot be used leads to the next, and RV(notes) says so.
    type: list
    elements: str
    choices: [depot, mirrors, upstream]
    default: [depot, mirrors, upstream]
  accept_unqualified:
    description: Releases (the family may be left out) that may be installed although they are known to fail.
    type: list
    elements: str
    default: []
  keep:
    description: How many previous bundles stay on the disk.
    type: int
    default: 1
  packages:
    description: Packages that the bundled compiler needs on the host (the C library's headers).
    type: list
    elements: str
    default: [libc6-dev]
  verify:
    description:
      - Also read every file of the installed bundle and compare it with what was laid down (gigabytes).
      - A damaged one is laid down again.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Predicts every change, downloads nothing.
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
- name: The bundle that preflight decided on
  lemonade.deploy.vllm_bundle:
    tag: "{{ ansible_facts.lemonade_deploy.decision.release.tag }}"
    family: "{{ ansible_facts.lemonade_deploy.decision.release.family }}"
    lock_file: lemonade-deploy.lock

- name: From a mirror in the LAN, with two previous bundles kept
  lemonade.deploy.vllm_bundle:
    tag: vllm0.22.1-rocm7.13.0-gfx1151
    family: gfx1151
    lock_file: lemonade-deploy.lock
    base_url: http://mirror.example/vllm-rocm
    keep: 2
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
      description: Digest of the tree's manifest, after C(sha256:); empty where only a run can know it.
      type: str
lay_down:
  description: How the work went; all zero where nothing had to be fetched.
  returned: success
  type: dict
  contains:
    fetched_bytes:
      description: Bytes that came over the network.
      type: int
    retries:
      description: Requests that failed and were made again.
      type: int
    seconds:
      description: Time to stream, verify and unpack.
      type: float
    static_check_seconds:
      description: Time of the static checks.
      type: float
    resumed_bytes:
      description: Bytes of the tree that an earlier run had unpacked and that were found sound.
      type: int
    source:
      description: Where the bundle came from; empty where nothing was fetched.
      type: str
notes:
  description: What the user should know, for example that the depot could not be used, or parts not be kept.
  returned: success
  type: list
  elements: str
failure:
  description: Layer, message and remedy.
  returned: failure
  type: dict
"""

from typing import Any

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import bundle
from ansible_collections.lemonade.deploy.plugins.module_utils.assets import BASE_URL
from ansible_collections.lemonade.deploy.plugins.module_utils.bundle_install import Order, Stats
from ansible_collections.lemonade.deploy.plugins.module_utils.bundle_lock import locked_release, unqualified
from ansible_collections.lemonade.deploy.plugins.module_utils.bundle_plan import (
    LAYER,
    Wanted,
    plan_bundle,
    refuse_early,
)
from ansible_collections.lemonade.deploy.plugins.module_utils.bundle_sources import places
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.lock import LockError
from ansible_collections.lemonade.deploy.plugins.module_utils.module import Refused, fail, run_module

ARGUMENTS: dict[str, dict[str, Any]] = {
    "tag": {"type": "str", "required": True},
    "family": {"type": "str", "required": True},
    "lock": {"type": "dict"},
    "lock_file": {"type": "str", "default": "lemonade-deploy.lock"},
    "inventory": {"type": "str", "default": ""},
    "base_url": {"type": "str", "default": BASE_URL},
    "mirrors": {"type": "list", "elements": "str", "default": []},
    "depot_url": {"type": "str", "default": ""},
    "depot_token": {"type": "str", "default": "", "no_log": True},
    "sources": {
        "type": "list",
        "elements": "str",
        "choices": ["depot", "mirrors", "upstream"],
        "default": ["depot", "mirrors", "upstream"],
    },
    "accept_unqualified": {"type": "list", "elements": "str", "default": []},
    "keep": {"type": "int", "default": 1},
    "packages": {"type": "list", "elements": "str", "default": ["libc6-dev"]},
    "verify": {"type": "bool", "default": False},
}


def main() -> None:
    """Read the arguments, find the release in the lock, plan and carry out."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    asked = module.params
    try:
        release = locked_release(
            asked["lock"], asked["lock_file"], asked["tag"], asked["family"], asked["inventory"]
        )
        remark = unqualified(release, asked["accept_unqualified"])
        chosen = places(
            asked["sources"], asked["base_url"], asked["mirrors"], asked["depot_url"], asked["depot_token"]
        )
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
    host, stats = Host(), Stats()
    stats.notes += [remark] if remark else []
    wanted = Wanted(Order(release, asked["base_url"], places=chosen), asked["keep"], tuple(asked["packages"]))

    def plan() -> list[Change]:
        observed = bundle.observe(host, release, wanted.packages, asked["verify"])
        refuse_early(host, observed, wanted)
        return plan_bundle(observed, wanted, stats)

    def extra(_changes: list[Change]) -> dict[str, Any]:
        observed = bundle.observe(host, release, wanted.packages)
        told = {"bundle": bundle.public(observed, release), "lay_down": stats.public()}
        return {**told, "notes": stats.notes}

    run_module(module, LAYER, plan, host, extra)


if __name__ == "__main__":
    main()
