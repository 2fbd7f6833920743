#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module activate: initramfs, the one reboot (done by the action plugin), the proof."""

from __future__ import annotations

DOCUMENTATION = r"""
module: activate
short_description: Bring into effect what needs a boot, and prove it
version_added: "0.1.0"
description:
  - Rebuilds every kernel's initramfs once where anything asks for it, reboots the host once where what runs
    is not what is wanted, and proves the result by what the running kernel shows.
  - "The proof: the wanted kernel runs, the wanted amdgpu module is loaded, every supported GPU has a KFD
    node, C(cwsr_size) and C(ctl_stack_size) of every gfx1151 are what the kernel's formula gives for its
    CUs, and the GTT limit is in effect. No option skips it; it runs on every run."
  - A new kernel is booted once, after its initramfs was built; it becomes GRUB's default after the proof.
    A panic, a boot that GRUB or the initramfs cannot do, and a boot that is not confirmed in time end on the
    old kernel by themselves, and the task fails with what is known of that boot.
  - The machine that Ansible itself runs on is never rebooted; RV(reboot_required) is true then.
options:
  state:
    description:
      - V(prepare) is the part before the boot, V(prove) the part after it, V(back) the part after a boot
        back into the old kernel. Set by the action plugin.
    type: str
    choices: [prepare, prove, back]
    default: prepare
  origin:
    description: The wanted driver.
    type: str
    choices: [in-tree, dkms]
    required: true
  kernel:
    description: Release of the wanted kernel. Empty means the running one.
    type: str
    default: ""
  pages:
    description: Wanted GTT limit in pages of 4 KiB. Left out, it is not looked at.
    type: int
  pending:
    description: The C(activation) results of the roles before, so that check mode predicts the same as a run.
    type: list
    elements: dict
    default: []
  reboot:
    description: Whether to reboot where that is needed. Without it the host stops with RV(reboot_required).
    type: bool
    default: true
  reboot_timeout:
    description: Seconds that a boot may take.
    type: int
    default: 900
  confirm_timeout:
    description: Seconds after which a kernel on trial that was not confirmed reboots into the old one.
    type: int
    default: 900
attributes:
  check_mode:
    support: full
    description: Predicts the rebuild, the reboot and the change of the default.
  diff_mode:
    support: none
    description: There is no text to compare.
author:
  - The lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: Bring the kernel's own driver into effect, and prove it
  lemonade.deploy.activate:
    origin: in-tree
    kernel: 7.0.0-31-generic
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
gpu:
  description: The GPUs as the running kernel shows them; sizes in bytes.
  returned: always
  type: list
  elements: dict
kernel:
  description: Release of the running kernel.
  returned: always
  type: str
boot_id:
  description: Id of the running boot.
  returned: always
  type: str
rebooted:
  description: Whether the host was rebooted.
  returned: success
  type: bool
reboot:
  description: Why a reboot is (or was) needed.
  returned: success
  type: list
  elements: str
trial:
  description: Release that the next boot tries, or that this boot tries without proof; empty for none.
  returned: always
  type: str
reboot_required:
  description: Whether the run must stop here until somebody reboots the machine.
  returned: success
  type: bool
"""

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import activate_steps, activation
from ansible_collections.lemonade.deploy.plugins.module_utils.activation import Due
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change, result
from ansible_collections.lemonade.deploy.plugins.module_utils.host import CommandFailed, Host
from ansible_collections.lemonade.deploy.plugins.module_utils.module import (
    SYSTEM_LOCK,
    Refused,
    fail,
    one_at_a_time,
)
from ansible_collections.lemonade.deploy.plugins.module_utils.proof import SETTLE_SECONDS, ProofWish


class Activate:
    """One call of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.host = Host()
        self.made: list[Change] = []
        kernel = module.params["kernel"] or self.host.running_kernel()
        self.wish = ProofWish(module.params["origin"], kernel, module.params["pages"])

    def run(self) -> None:
        """Do what the state says and end the module."""
        try:
            with one_at_a_time(self.module, self.host, SYSTEM_LOCK):
                states = {"prepare": self.prepare, "prove": self.prove, "back": self.back}
                states[self.module.params["state"]]()
        except Refused as refusal:
            self.fail(refusal.found, refusal.remedy)
        except (CommandFailed, OSError, ValueError) as error:
            self.fail(str(error))

    def prepare(self) -> None:
        """Before the boot; where none is needed the proof follows at once."""
        pending = [activation.parse(record) for record in self.module.params["pending"] if record]
        situation = activate_steps.look(self.host, self.wish, pending)
        changes = self.made
        if self.module.check_mode:
            changes = activate_steps.plan(situation)
            if not situation.reboot:
                self.demand_proof(0)
        else:
            confirm = self.module.params["confirm_timeout"]
            activate_steps.prepare(self.host, situation, self.wish, confirm, self.module.warn, self.made)
            if not situation.reboot:
                self.prove_and_confirm(self.patience(), situation.due)
        on_trial = situation.reboot and situation.due.kernel not in (None, situation.running)
        self.finish(changes, situation.reboot, situation.due.kernel if on_trial else "")

    def prove(self) -> None:
        """After the boot."""
        fallen = activate_steps.fallen(self.host, self.wish)
        if fallen is not None:
            self.fail(*fallen)
        patience = min(SETTLE_SECONDS, self.module.params["confirm_timeout"] // 4)
        self.prove_and_confirm(patience, activation.load(self.host))
        self.finish(self.made, ())

    def patience(self) -> int:
        """Seconds to wait for the driver in a boot that an earlier run began; none in an ordinary one.

        Never so long that the kernel on trial runs out of its own time meanwhile.
        """
        if not activate_steps.on_trial(self.host):
            return 0
        return min(SETTLE_SECONDS, int(self.module.params["confirm_timeout"]) // 4)

    def back(self) -> None:
        """After the boot back from a kernel that came up, but was not proven."""
        activate_steps.fallen(self.host, self.wish)
        self.finish([], ())

    def prove_and_confirm(self, timeout: float, due: Due) -> None:
        """Confirm what is proven of kernel and driver, then fail with whatever is not as wanted."""
        problems = activate_steps.prove(self.host, self.wish, timeout)
        if not any(problem.kernel for problem in problems):
            self.made += activate_steps.confirm(self.host, due, self.wish)
        if problems:
            self.refuse(problems)

    def demand_proof(self, timeout: float) -> None:
        """Fail with every problem of the proof."""
        problems = activate_steps.prove(self.host, self.wish, timeout)
        if problems:
            self.refuse(problems)

    def refuse(self, problems: list) -> None:
        """End the module with what the proof lacks; a kernel on trial is then not kept."""
        on_trial = any(problem.kernel for problem in problems) and activate_steps.on_trial(self.host)
        found = "; ".join(problem.found for problem in problems)
        remedy = "; ".join(problem.remedy for problem in problems)
        self.fail(found, remedy, trial=self.host.running_kernel() if on_trial else "")

    def finish(self, changes: list, reboot: tuple, trial: str = "") -> None:
        """End the module well."""
        shown = activate_steps.shown(self.host)
        self.module.exit_json(
            **result(changes),
            **shown,
            reboot=list(reboot),
            rebooted=False,
            reboot_required=False,
            trial=trial,
        )

    def fail(self, message: str, remedy: str = "", trial: str = "") -> None:
        """End the module with an error."""
        shown = activate_steps.shown(self.host)
        fail(self.module, activation.LAYER, message, remedy, **result(self.made), **shown, trial=trial)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["prepare", "prove", "back"], "default": "prepare"},
            "origin": {"type": "str", "choices": ["in-tree", "dkms"], "required": True},
            "kernel": {"type": "str", "default": ""},
            "pages": {"type": "int"},
            "pending": {"type": "list", "elements": "dict", "default": []},
            "reboot": {"type": "bool", "default": True},
            "reboot_timeout": {"type": "int", "default": 900},
            "confirm_timeout": {"type": "int", "default": 900},
        },
        supports_check_mode=True,
    )
    Activate(module).run()


if __name__ == "__main__":
    main()
