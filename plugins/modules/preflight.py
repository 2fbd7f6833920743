#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Look at a host, change nothing, and decide what the later layers do."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: preflight
short_description: Look at a host with an AMD GPU and decide driver, kernel and bundle
version_added: "0.1.0"
description:
  - Reads the GPU (from PCI, KFD and DRM), the loaded and the on-disk amdgpu module, DKMS, dpkg, apt sources,
    keys and pins, kernel command line, modprobe files, firmware, Secure Boot, free space, the service user.
  - Computes one decision (driver policy, driver repository, kernel, bundle release, memory limit) that the
    later roles only execute, and findings with remedies.
  - Never changes anything. apt is asked only where another kernel is needed, with a private state.
options:
  doctor:
    description: Only report. A host without a supported GPU, or one that cannot go on, is then no failure.
    type: bool
    default: false
  amdgpu_driver_policy:
    description:
      - Which amdgpu module is to run. V(auto) takes the kernel's own on any host with a gfx115x APU,
        keeps AMD's DKMS driver where it works on others, and else takes the kernel's own.
    type: str
    choices: [auto, intree, dkms]
    default: auto
  amdgpu_driver_repo_version:
    description: Version of AMD's driver repository, a minimum unless O(amdgpu_driver_repo_exact).
    type: str
    default: "31.20"
  amdgpu_driver_repo_exact:
    description: Take exactly this version of the repository.
    type: bool
    default: false
  amdgpu_driver_repo_key_fingerprint:
    description: Fingerprint of the key that signs AMD's driver repository.
    type: str
    default: CA8BB4727A47B4D09B4EE8969386B48A1A693C5C
  kernel_source:
    description: Where a kernel is taken from when one is needed. V(keep) never installs one.
    type: str
    choices: [auto, distro, oem, hwe, backports, mainline, keep]
    default: auto
  kernel_version:
    description:
      - The kernel to run, as C(uname -r) shows it or by upstream's number (C(6.18.20)).
      - Empty leaves the choice to the kit.
    type: str
    default: ""
  kernel_mainline_url:
    description: Where Ubuntu's mainline builds are; an http(s) address or a folder on the host.
    type: str
    default: https://kernel.ubuntu.com/mainline
  kernel_mainline_key_fingerprint:
    description: Fingerprint of the key that signs the mainline builds' CHECKSUMS.
    type: str
    default: 60AA7B6F30434AE68E569963E50C6A0917C622B0
  kernel_mainline_key:
    description: That key as a file on the host, or its address. Empty asks C(keyserver.ubuntu.com).
    type: str
    default: ""
  vllm_rocm_release:
    description: Release of lemonade-sdk/vllm-rocm, with or without its family. Empty is the newest qualified.
    type: str
    default: ""
  locked:
    description:
      - Releases that the lock file on the controller names, empty where there is no such file.
      - A host whose release is not among them fails here, before anything is changed.
      - Left out, the lock is not judged. With O(judge_lock) the controller takes it from O(lock_file).
    type: list
    elements: str
  judge_lock:
    description: Whether O(locked) is taken from O(lock_file).
    type: bool
    default: false
  lock_there:
    description: Whether there is such a file; the controller looks.
    type: bool
    default: false
  unqualified:
    description:
      - Those of the lock's releases that upstream's own tests were recorded to call unqualified.
      - The controller takes them from O(lock_file).
    type: list
    elements: str
    default: []
  vllm_rocm_accept_unqualified:
    description:
      - Releases (the family may be left out) that may be installed although they are known to fail.
      - Others that are known to fail stop here, before anything is changed, where O(locked) is given.
    type: list
    elements: str
    default: []
  lock_file:
    description:
      - The lock file on the controller. It is read there; one that is wrong (a key of it stands there twice,
        for instance) fails before the host is looked at.
    type: str
    default: ""
  inventory:
    description: The inventory, for messages.
    type: str
    default: ""
  gpu_memory_gtt_gib:
    description: GiB of system memory an APU may use as GPU memory, or V(auto).
    type: str
    default: auto
  gpu_memory_service_user:
    description: The user that needs access to the GPU.
    type: str
    default: lemonade
  min_disk_gib:
    description: GiB that must be free for a bundle that is not on the host yet.
    type: int
    default: 20
attributes:
  check_mode:
    description: Nothing is ever changed.
    support: full
  diff_mode:
    description: Nothing is ever changed, so there is nothing to show.
    support: full
author:
  - lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: Look at the host and decide
  lemonade.deploy.preflight:

- name: Only report what is wrong with it
  lemonade.deploy.preflight:
    doctor: true
"""

RETURN = r"""
ansible_facts:
  description: One fact, C(lemonade_deploy), that the later roles read.
  returned: success
  type: dict
  contains:
    lemonade_deploy:
      description: The C(facts), the C(decision) (null where none was possible) and the C(findings).
      type: dict
      returned: success
findings:
  description: What was found, each with id, severity (error, warning, info), found, remedy and source.
  returned: always
  type: list
  elements: dict
gpu:
  description: Each AMD GPU with KFD node, ISA, CU count, driver, exported and expected CWSR sizes, verdict.
  returned: always
  type: list
  elements: dict
kernel:
  description: Release of the running kernel.
  returned: always
  type: str
changes:
  description: Always empty.
  returned: success
  type: list
  elements: dict
failure:
  description: Why this host cannot go on, C(layer), C(message) and C(remedy).
  returned: failure
  type: dict
"""

from typing import Any

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils.decision import Wishes
from ansible_collections.lemonade.deploy.plugins.module_utils.facts import read_facts
from ansible_collections.lemonade.deploy.plugins.module_utils.host import CommandFailed, Host
from ansible_collections.lemonade.deploy.plugins.module_utils.kernel_choice import Mainline
from ansible_collections.lemonade.deploy.plugins.module_utils.preflight import (
    Report,
    ask_apt,
    foresee_kernel,
    look,
    stop_reason,
)
from ansible_collections.lemonade.deploy.plugins.module_utils.refusal import Refused, fail
from ansible_collections.lemonade.deploy.plugins.module_utils.releases import unfit

LAYER = "preflight"


def arguments() -> dict[str, dict[str, object]]:
    """The argument spec; defaults equal those of the roles the variables belong to."""
    return {
        "doctor": {"type": "bool", "default": False},
        "amdgpu_driver_policy": {"type": "str", "choices": ["auto", "intree", "dkms"], "default": "auto"},
        "amdgpu_driver_repo_version": {"type": "str", "default": "31.20"},
        "amdgpu_driver_repo_exact": {"type": "bool", "default": False},
        "amdgpu_driver_repo_key_fingerprint": {
            "type": "str",
            "default": "CA8BB4727A47B4D09B4EE8969386B48A1A693C5C",
            "no_log": False,
        },
        "kernel_source": {
            "type": "str",
            "choices": ["auto", "distro", "oem", "hwe", "backports", "mainline", "keep"],
            "default": "auto",
        },
        "kernel_version": {"type": "str", "default": ""},
        "kernel_mainline_url": {"type": "str", "default": "https://kernel.ubuntu.com/mainline"},
        "kernel_mainline_key_fingerprint": {
            "type": "str",
            "default": "60AA7B6F30434AE68E569963E50C6A0917C622B0",
            "no_log": False,
        },
        "kernel_mainline_key": {"type": "str", "default": "", "no_log": False},
        "vllm_rocm_release": {"type": "str", "default": ""},
        "gpu_memory_gtt_gib": {"type": "str", "default": "auto"},
        "gpu_memory_service_user": {"type": "str", "default": "lemonade"},
        "min_disk_gib": {"type": "int", "default": 20},
        "locked": {"type": "list", "elements": "str"},
        "judge_lock": {"type": "bool", "default": False},
        "lock_there": {"type": "bool", "default": False},
        "unqualified": {"type": "list", "elements": "str", "default": []},
        "vllm_rocm_accept_unqualified": {"type": "list", "elements": "str", "default": []},
        "lock_file": {"type": "str", "default": ""},
        "inventory": {"type": "str", "default": ""},
    }


def wishes(params: dict[str, object]) -> Wishes:
    """The wishes in the module's arguments."""
    return Wishes(
        policy=str(params["amdgpu_driver_policy"]),
        repository_version=str(params["amdgpu_driver_repo_version"]),
        repository_exact=bool(params["amdgpu_driver_repo_exact"]),
        kernel_source=str(params["kernel_source"]),
        kernel_version=str(params["kernel_version"]),
        mainline=Mainline(
            str(params["kernel_mainline_url"]),
            str(params["kernel_mainline_key_fingerprint"]),
            str(params["kernel_mainline_key"]),
        ),
        release=str(params["vllm_rocm_release"]),
        gtt_gib=str(params["gpu_memory_gtt_gib"]),
    )


def examine(host: Host, params: dict[str, Any], check_mode: bool = False) -> Report:
    """Facts, decision and findings of *host*."""
    facts = read_facts(
        host,
        fingerprint=str(params["amdgpu_driver_repo_key_fingerprint"]),
        service_user=str(params["gpu_memory_service_user"]),
    )
    return look(
        host,
        facts,
        wishes(params),
        ask_apt(host),
        int(str(params["min_disk_gib"])),
        unqualified=params["unqualified"],
        # The scripts of grub-mkconfig are the host's own: they run only where they are about to anyway.
        foresee=foresee_kernel(host, menu=not (check_mode or params["doctor"])),
    )


def no_bundle(report: Report, params: dict[str, Any]) -> Refused | None:
    """Why the decided bundle would not be laid down later: nothing vouches for it, or it is known to fail."""
    locked = params["locked"]
    if locked is None or report.decision is None:
        return None
    release = report.decision.release
    why = unfit(release.base, release.tag in params["unqualified"])
    if release.tag in locked and not why:
        return None
    # Imported where it is needed: imports are what a converged host pays for.
    from ansible_collections.lemonade.deploy.plugins.module_utils import bundle_lock

    if release.tag not in locked:
        return bundle_lock.not_locked(
            params["lock_file"],
            release.tag,
            release.family,
            params["inventory"],
            there=bool(locked) or params["lock_there"],
        )
    if bundle_lock.accepted(release.tag, params["vllm_rocm_accept_unqualified"]):
        return None
    return bundle_lock.known_to_fail(release.tag, why)


def main() -> None:
    """Look, decide, report."""
    module = AnsibleModule(argument_spec=arguments(), supports_check_mode=True)
    host = Host()
    try:
        report = examine(host, module.params, module.check_mode)
    except (CommandFailed, OSError, ValueError) as error:
        fail(module, LAYER, str(error))
        return
    public = report.public()
    shown = {"findings": public["findings"], "gpu": public["facts"]["gpu"], "kernel": report.facts.kernel}
    stop = None if module.params["doctor"] else stop_reason(report) or no_bundle(report, module.params)
    if stop is not None:
        fail(module, LAYER, stop.found, stop.remedy, **shown)
    module.exit_json(changed=False, changes=[], diff=[], ansible_facts={"lemonade_deploy": public}, **shown)


if __name__ == "__main__":
    main()
