# SPDX-License-Identifier: Apache-2.0
"""Controller side of vllm_bundle: reads the lock file, and shows how far the module is."""

from __future__ import annotations

from typing import Any

from ansible_collections.lemonade.deploy.plugins.module_utils.lock import LockError
from ansible_collections.lemonade.deploy.plugins.plugin_utils import lock_file
from ansible_collections.lemonade.deploy.plugins.plugin_utils.watched import Watched


class ActionModule(Watched):
    """The module with the lock, watched."""

    module = "vllm_bundle"

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's result, or what is wrong with the lock file."""
        try:
            self._task.args = lock_file.with_lock(self._task.args)
        except LockError as error:
            return lock_file.failed("vllm_rocm", error)
        return super().run(tmp, task_vars)
