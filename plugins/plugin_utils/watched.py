# SPDX-License-Identifier: Apache-2.0
"""Controller side of a module that works for minutes: shows what it tells in its file on the host."""

from __future__ import annotations

import copy
import threading
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.lemonade.deploy.plugins.module_utils import paths

INTERVAL = 3.0  # s between two looks
PROGRESS = "[PROGRESS] "  # the controller shows such a line in the host's own (events.py)


def tell(host: str, text: str) -> None:
    """Show how far a host is."""
    Display().display(f"{PROGRESS}{host} {text}")


class Watched(ActionBase):
    """Runs the module of its own name."""

    _supports_check_mode = True
    _supports_async = False
    module = ""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's result."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        stop, speaking = threading.Event(), threading.Lock()
        look = (str(variables.get("inventory_hostname", "")), stop, speaking)
        watch = threading.Thread(target=self._follow, args=look, daemon=True)
        if not self._task.check_mode:
            watch.start()
        try:
            result: dict[str, Any] = self._execute_module(
                module_name=f"lemonade.deploy.{self.module}", task_vars=variables
            )
        finally:
            # A line that is being shown comes before the result. Ansible's worker ends after that, and a
            # thread of it that still wrote would take the lock of the queue to the display with it.
            with speaking:
                stop.set()
        return result

    def _follow(self, host: str, stop: threading.Event, speaking: threading.Lock) -> None:
        # Of its own: a connection keeps the state of the command that it runs (ssh's pipe for a password).
        connection, seen = copy.copy(self._connection), ""
        while not stop.wait(INTERVAL):
            try:
                code, out, _err = connection.exec_command(f"cat {paths.PROGRESS}", sudoable=False)
            except Exception:  # a connection plugin raises what it likes
                return  # the host is down, or cannot be asked twice at once: its module tells the end
            text = out.decode("utf-8", "replace").strip() if code == 0 else ""
            with speaking:
                if text and text != seen and not stop.is_set():
                    seen = text
                    tell(host, text)
