# SPDX-License-Identifier: Apache-2.0
"""Controller side of lemonade_model: downloads in slices of time, told as they go on, then the loads.

A module cannot speak while it works; one that returns now and then can, and a download that goes on where
it stopped loses nothing by it.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.lemonade.deploy.plugins.plugin_utils.parts import failed_after
from ansible_collections.lemonade.deploy.plugins.plugin_utils.watched import tell

MODULE = "lemonade.deploy.lemonade_model"
SLICE = 15  # s between two signs of a download


class ActionModule(ActionBase):
    """Files, then loads."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The task's result, with the changes of all its parts."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        if self._task.check_mode or self._task.args.get("stage", "all") != "all":
            return self._module(variables)
        host = str(variables.get("inventory_hostname", ""))
        limit = float(self._task.args.get("pull_timeout") or 14400)
        began = time.monotonic()
        made: list[dict[str, str]] = []
        first = result = self._module(variables, stage="files", slice=SLICE)
        while result.get("more") and not result.get("failed"):
            made += result["made"]
            self._tell(host, result["progress"], time.monotonic() - began)
            if time.monotonic() - began > limit:
                return failed_after(made, _too_long(result["progress"], limit))
            result = self._module(variables, stage="files", slice=SLICE)
        if result.get("failed"):
            return failed_after(made, result)
        # The first call planned all of it, the last one only what was left.
        changes = first.get("changes", [])
        fresh = [
            str(one["object"]).partition(" ")[2] for one in changes if one["object"].startswith("model ")
        ]
        tell(host, "checking and loading; a first load compiles kernels and can take minutes")
        last = self._module(variables, stage="load", fresh=fresh)
        if last.get("failed"):
            return failed_after([*made, *result.get("changes", [])], last)
        # vLLM as the daemon loads with its start, in the first part.
        last["load_seconds"] = last.get("load_seconds") or result.get("load_seconds")
        return {**last, "changed": bool(changes), "changes": changes, "diff": first.get("diff", [])}

    def _module(self, variables: dict[str, Any], **more: Any) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name=MODULE, module_args={**self._task.args, **more}, task_vars=variables
        )
        return result

    def _tell(self, host: str, progress: dict[str, Any], seconds: float) -> None:
        done, total = progress["done"] / 1e9, progress["total"] / 1e9
        share = 100 * done / total if total else 0.0
        tell(host, f"{progress['file']}: {done:.2f} of {total:.2f} GB, {share:.0f} % ({seconds:.0f} s)")


def _too_long(progress: dict[str, Any], limit: float) -> dict[str, Any]:
    message = (
        f"The download was not complete after {limit:.0f} s "
        f"({progress['done'] / 1e9:.2f} of {progress['total'] / 1e9:.2f} GB)."
    )
    remedy = "Run it again, it goes on there; or raise models_pull_timeout."
    failure = {"layer": "models", "task": "", "message": message, "remedy": remedy}
    return {"failed": True, "msg": f"{message} {remedy}", "failure": failure}
