#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module amdgpu_driver: the kernel's own amdgpu, or AMD's DKMS driver of one good release."""

from __future__ import annotations

DOCUMENTATION = r"""
module: amdgpu_driver
short_description: Put the wanted amdgpu driver on a host
version_added: "0.1.0"
description:
  - Executes the driver part of the decision that M(lemonade.deploy.preflight) computed.
  - C(intree) repairs a half-finished dpkg and a stale DKMS tree, sees to the distribution's own firmware for
    this GPU, purges amdgpu-dkms and its firmware after simulating that nothing else would go, removes exactly
    what AMD's scripts leave behind, and pins the packages away. AMD's apt sources stay.
  - C(dkms) switches AMD's apt source to the wanted release, fetches its key again where that is missing or
    expired, and writes the pin where none works. The release is probed before; every file goes back where apt
    cannot use it afterwards. Then it installs amdgpu-dkms and amdgpu-dkms-firmware of one build.
  - An entry for another distribution release, and one that is there twice, are errors.
  - What must take effect at boot is written to the due-marker before anything is changed; role activate
    works it off.
options:
  policy:
    description: Which driver is wanted.
    type: str
    choices: [intree, dkms]
    required: true
  repo_version:
    description: >-
      Release of AMD's driver repository under O(policy=dkms), for example V(31.20). A minimum, unless
      O(repo_exact=true). C(latest) is higher than any number; empty leaves what is installed.
    type: str
    default: "31.20"
  repo_exact:
    description: Take exactly O(repo_version), also where the source names a later one.
    type: bool
    default: false
  repo_key_fingerprint:
    description: Fingerprint of the key that signs AMD's repository; only such a key is fetched and trusted.
    type: str
    default: CA8BB4727A47B4D09B4EE8969386B48A1A693C5C
  kernel:
    description: Release of the kernel that will run after the next boot. Empty means the running one.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Predicts every change; apt is asked on a private copy of its state.
  diff_mode:
    support: full
    description: Shows the files it changes.
author:
  - The lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: Use the kernel's own driver
  lemonade.deploy.amdgpu_driver:
    policy: intree

- name: Use AMD's driver 31.20 or later
  lemonade.deploy.amdgpu_driver:
    policy: dkms
    repo_version: "31.20"
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
left_alone:
  description: >-
    Entries of AMD's under O(policy=dkms) that no switch touches, by file, line and text (graphics, rocm,
    proprietary, and what is not enabled).
  returned: success
  type: list
  elements: str
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
      description: Kernel to boot once and to make the default afterwards.
      type: str
"""

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import (
    driver_firmware,
    driver_plan,
    driver_purge,
    driver_sources,
    driver_state,
    driver_switch,
)
from ansible_collections.lemonade.deploy.plugins.module_utils.activation import Due
from ansible_collections.lemonade.deploy.plugins.module_utils.apt_formats import Entry
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change
from ansible_collections.lemonade.deploy.plugins.module_utils.findings import printable
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.module import SYSTEM_LOCK, Refused, run_module


class Driver:
    """Plans one policy, and keeps what the first plan needs at boot."""

    def __init__(self, host: Host, parameters: dict) -> None:
        self.host = host
        self.parameters = parameters
        self.due: Due | None = None
        self.left_alone: list[str] = []

    def plan(self) -> list[Change]:
        """The plan for the host as it is now."""
        state = driver_state.read(self.host)
        intree = self.parameters["policy"] == "intree"
        due, changes = self._intree(state) if intree else self._dkms(state)
        if not intree:
            self.left_alone = [_named(entry) for entry in driver_sources.left_alone(self.host)]
        self.due = self.due or due
        return changes

    def _intree(self, state: driver_state.DriverState) -> tuple[Due, list[Change]]:
        running = self.host.running_kernel()
        kernel = self.parameters["kernel"] or running
        # Another kernel is only to be installed, a half-way one repaired; to a minimal install role kernel
        # brings the module, and nothing goes here: role activate looks at all of these.
        goes = state.packages and not state.half_way
        if kernel == running and goes and driver_state.lacks_own_module(self.host, kernel):
            raise Refused(
                f"kernel {kernel} has no amdgpu module of its own",
                f"run `apt-get install --reinstall linux-modules-extra-{kernel}` (or linux-modules-{kernel})",
            )
        driver_purge.demand(self.host, state)
        # AMD's own firmware package, or what is left of it, is what the GPU may run with now.
        firmware = driver_firmware.plan(self.host, driver_plan.LAYER, kernel) if state.residue else []
        return driver_plan.intree_due(state), driver_plan.plan_intree(state, firmware)

    def _dkms(self, state: driver_state.DriverState) -> tuple[Due, list[Change]]:
        request = driver_sources.Request(
            self.parameters["repo_version"],
            self.parameters["repo_exact"],
            self.parameters["repo_key_fingerprint"],
            self.parameters["kernel"] or self.host.running_kernel(),
        )
        wish = driver_switch.make_wish(self.host, state, request)
        changes = driver_plan.plan_dkms(state, wish, driver_switch.steps(wish))
        return driver_plan.dkms_due(state, wish), changes


def _named(entry: Entry) -> str:
    return printable(f"{entry.path} line {entry.line}: {entry.text}")


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "policy": {"type": "str", "choices": ["intree", "dkms"], "required": True},
            "repo_version": {"type": "str", "default": "31.20"},
            "repo_exact": {"type": "bool", "default": False},
            "repo_key_fingerprint": {
                "type": "str",
                "default": "CA8BB4727A47B4D09B4EE8969386B48A1A693C5C",
                "no_log": False,
            },
            "kernel": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    driver = Driver(Host(), module.params)

    def extra(_changes: list[Change]) -> dict:
        return {"activation": (driver.due or Due()).public(), "left_alone": driver.left_alone}

    run_module(module, driver_plan.LAYER, driver.plan, driver.host, extra, SYSTEM_LOCK)


if __name__ == "__main__":
    main()
