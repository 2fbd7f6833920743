# SPDX-License-Identifier: Apache-2.0
"""Changes of Ansible's builtin modules in the form of our own: layer, object, action."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_VERBS = {
    "template": "write",
    "copy": "write",
    "lineinfile": "write",
    "blockinfile": "write",
    "get_url": "download",
    "unarchive": "unpack",
    "apt": "install",
    "package": "install",
    "dnf": "install",
    "deb822_repository": "configure",
    "systemd": "configure",
    "systemd_service": "configure",
    "service": "configure",
    "user": "configure",
    "group": "configure",
    "command": "run",
    "shell": "run",
    "reboot": "reboot",
}
_STATES = {
    "absent": "remove",
    "started": "start",
    "stopped": "stop",
    "restarted": "restart",
    "reloaded": "reload",
    "directory": "create",
    "link": "link",
    "touch": "create",
    "latest": "upgrade",
}


def changes_of_builtin(layer: str, action: str, task: str, result: Mapping[str, Any]) -> list[dict[str, str]]:
    """One change, or one for each package of an apt call. ``object`` carries no version."""
    module = action.rsplit(".", 1)[-1]
    arguments = (result.get("invocation") or {}).get("module_args") or {}
    state = str(result.get("state") or arguments.get("state") or "")
    verb = _STATES.get(state) or _VERBS.get(module, "change")
    names: Any = None
    for source in (result, arguments):
        for key in ("dest", "path", "name", "package", "repo"):
            names = names or source.get(key)
    if module in ("command", "shell", "raw", "script", "reboot") or not names:
        names = task
    found = names if isinstance(names, list) else [names]
    return [
        {"layer": layer, "object": _plain(module, str(name)), "action": verb, "detail": task}
        for name in found
    ]


def _plain(module: str, name: str) -> str:
    """A package's name without ``=version``."""
    return re.split(r"[=<>]", name)[0] if module in ("apt", "package", "dnf") else name
