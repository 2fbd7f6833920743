# SPDX-License-Identifier: Apache-2.0
"""Controller side of activate: module, one reboot, module again."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

BOOT_ID = "/proc/sys/kernel/random/boot_id"
MODULE = "lemonade.deploy.activate"


class ActionModule(ActionBase):
    """Prepare, reboot where that is needed and allowed, prove."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The task's result, with the changes of all its parts."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        first = self._module("prepare", variables)
        unproven = first.get("failed") and first.get("trial")  # an earlier run began the trial
        if unproven and not self._task.check_mode and self._may_reboot(first):
            changes = [*first.get("changes", []), _reboot_of("back into the old kernel")]
            back = self._back(first, variables)
            return {**back, "changed": True, "rebooted": True, "changes": changes}
        if first.get("failed") or not first.get("reboot"):
            return first
        if self._task.check_mode:
            return first
        if not self._may_reboot(first):
            return {**first, "reboot_required": True}
        return self._reboot_and_prove(first, variables)

    def _reboot_and_prove(self, first: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        changes = [*first["changes"], _reboot_of("; ".join(first["reboot"]))]
        # A kernel on trial that is not confirmed reboots itself: that boot is waited for as well.
        patience = int(self._task.args.get("confirm_timeout", 900)) if first.get("trial") else 0
        failure = self._reboot(variables, patience)
        if failure:
            return _failed(failure, changes, first)
        last = self._prove(first, variables)
        if last.get("boot_id") == first["boot_id"]:
            return _failed("the host says it was rebooted, but runs the same boot", changes, last)
        if last.get("failed") and last.get("trial"):
            last = self._back(last, variables)
        last["changes"] = [*changes, *last.get("changes", [])]
        return {**last, "changed": True, "rebooted": True, "reboot": first["reboot"]}

    def _prove(self, first: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """The module's second part; a trial that reboots the host under it is asked again afterwards."""
        try:
            return self._module("prove", variables)
        except AnsibleConnectionFailure:
            if not first.get("trial"):
                raise
        self._plugin("ansible.builtin.wait_for_connection", {"timeout": self._timeout()}, variables)
        return self._module("prove", variables)

    def _timeout(self) -> int:
        return int(self._task.args.get("reboot_timeout", 900))

    def _back(self, unproven: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Boot the old kernel again instead of one that came up and was not proven; tells both."""
        told = unproven["failure"]
        failure = self._reboot(variables, 0)
        after = {} if failure else self._module("back", variables)
        if failure or after.get("failed") or after.get("kernel") == unproven["trial"]:
            why = failure or after.get("msg") or f"{unproven['trial']} runs again"
            end = f"the boot back into the old kernel failed: {why}"
        else:
            end = f"the box was booted back into {after['kernel']}, its default"
        message = f"{told['message']}; {end}"
        return {
            **unproven,
            **{key: after[key] for key in ("gpu", "kernel", "boot_id") if key in after},
            "msg": f"{message} {told['remedy']}".strip(),
            "failure": {**told, "message": message},
        }

    def _module(self, state: str, variables: dict[str, Any], **more: Any) -> dict[str, Any]:
        arguments = {**self._task.args, **more, "state": state}
        result: dict[str, Any] = self._execute_module(
            module_name=MODULE, module_args=arguments, task_vars=variables
        )
        return result

    def _may_reboot(self, first: dict[str, Any]) -> bool:
        """Not by choice, and not the machine this runs on (a container has the boot id of its host)."""
        wanted = str(self._task.args.get("reboot", True)).lower() in ("true", "yes", "1", "on")
        if not wanted or self._connection.transport == "local":
            return False
        try:
            with open(BOOT_ID, encoding="ascii") as stream:
                own = stream.read().strip()
        except OSError:
            return True
        return own != first.get("boot_id")

    def _reboot(self, variables: dict[str, Any], patience: int) -> str:
        """Reboot by ansible.builtin.reboot; why it failed, or "". *patience*: seconds beside the timeout."""
        arguments = {
            "reboot_timeout": self._timeout() + patience,
            "msg": "lemonade-deploy: reboot into the wanted kernel and driver",
        }
        result = self._plugin("ansible.builtin.reboot", arguments, variables)
        return str(result.get("msg", "the reboot failed")) if result.get("failed") else ""

    def _plugin(self, name: str, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Another action plugin's result, as if it were this task."""
        task = self._task.copy()
        task.args = arguments
        action = self._shared_loader_obj.action_loader.get(
            name,
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        result: dict[str, Any] = action.run(task_vars=variables)
        return result


def _reboot_of(why: str) -> dict[str, str]:
    """The reboot as a change."""
    return {"layer": "activate", "object": "host", "action": "reboot", "detail": why}


def _failed(message: str, changes: list[dict[str, str]], last: dict[str, Any]) -> dict[str, Any]:
    remedy = "look at the machine's console; the same command goes on afterwards"
    return {
        **{key: last[key] for key in ("gpu", "kernel", "boot_id") if key in last},
        "failed": True,
        "changed": True,
        "msg": f"{message} {remedy}",
        "failure": {"layer": "activate", "message": message, "remedy": remedy},
        "changes": changes,
        "rebooted": True,
    }
