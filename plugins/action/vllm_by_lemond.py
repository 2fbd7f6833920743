# SPDX-License-Identifier: Apache-2.0
"""Controller side of vllm_by_lemond: asks again while lemond installs, and tells how far it is."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.lemonade.deploy.plugins.module_utils.lock import LockError
from ansible_collections.lemonade.deploy.plugins.plugin_utils import lock_file
from ansible_collections.lemonade.deploy.plugins.plugin_utils.parts import failed_after
from ansible_collections.lemonade.deploy.plugins.plugin_utils.watched import tell

MODULE = "lemonade.deploy.vllm_by_lemond"
SLICE = 15  # s between two signs


class ActionModule(ActionBase):
    """The module in slices of time."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The task's result. The first call planned all of it."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        try:
            self._task.args = lock_file.with_lock(self._task.args)
        except LockError as error:
            return lock_file.failed("vllm_rocm", error)
        began, made = time.monotonic(), list[dict[str, str]]()
        first = result = self._module(variables)
        while result.get("more") and not result.get("failed"):
            made += result["made"]
            told = f"lemond installs vLLM: {result['progress']} ({time.monotonic() - began:.0f} s)"
            tell(str(variables.get("inventory_hostname", "")), told)
            result = self._module(variables)
        if result.get("failed"):
            return failed_after(made, result)
        if result is first:
            return result
        seconds = round(time.monotonic() - began, 1)
        return {**first, **{key: result[key] for key in ("bundle", "more", "progress")}, "seconds": seconds}

    def _module(self, variables: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name=MODULE, module_args={"slice": SLICE, **self._task.args}, task_vars=variables
        )
        return result
