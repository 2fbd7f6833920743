# SPDX-License-Identifier: Apache-2.0
"""Controller side of preflight: the variables of all roles and the lock are judged before a host is touched.

Ansible would judge each role's when its turn comes, in a task of its own a role and a host: a wrong value
of a late role would be found on a host that the earlier ones have changed.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.lemonade.deploy.plugins.module_utils import user_values
from ansible_collections.lemonade.deploy.plugins.module_utils.lock import UNQUALIFIED, LockError, parse
from ansible_collections.lemonade.deploy.plugins.plugin_utils import lock_file

MODULE = "lemonade.deploy.preflight"
ROLES = Path(__file__).resolve().parents[2] / "roles"
# What of a documented option Ansible's validator takes; the rest is for people.
_SHAPE = ("type", "choices", "elements", "options", "no_log")


class ActionModule(ActionBase):
    """Judge the variables, then run the module."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's result, or a failure that names each wrong variable."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        known = specs(ROLES)
        given = {name: variables[name] for name in known if variables.get(name) is not None}
        problems = faults({name: self._templar.template(value) for name, value in given.items()}, known)
        if problems:
            message, remedy = (
                "; ".join(problems).rstrip(".") + ".",
                "Correct these variables; this host was not touched.",
            )
            return {
                "failed": True,
                "msg": f"{message} {remedy}",
                "failure": {"layer": "preflight", "message": message, "remedy": remedy},
            }
        try:
            arguments = {**self._task.args, **locked(self._task.args)}
        except LockError as error:
            return lock_file.failed("preflight", error)
        result: dict[str, Any] = self._execute_module(
            module_name=MODULE, module_args=arguments, task_vars=variables
        )
        return result


def locked(arguments: dict[str, Any]) -> dict[str, Any]:
    """What the module is told of the lock that *arguments* name. Raises LockError."""
    file = str(arguments.get("lock_file") or "")
    if not file:
        return {}
    lock = lock_file.read(file)
    releases = {} if lock is None else parse(lock, file)
    bad = [tag for tag, release in releases.items() if release.qualification == UNQUALIFIED]
    told: dict[str, Any] = {"unqualified": bad, "lock_there": lock is not None}
    if boolean(arguments.get("judge_lock", False)):
        told["locked"] = list(releases)
    return told


@lru_cache(maxsize=1)
def specs(folder: Path) -> dict[str, dict[str, Any]]:
    """Variable → spec, of all roles below *folder* (their meta/argument_specs.yml)."""
    found: dict[str, dict[str, Any]] = {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted(folder.glob("*/meta/argument_specs.yml")):
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506  a safe one
        for entry in document["argument_specs"].values():
            for name, option in (entry.get("options") or {}).items():
                found[name] = _shape(option)
    return found


def _shape(option: dict[str, Any]) -> dict[str, Any]:
    spec = {key: option[key] for key in _SHAPE if key in option}
    if isinstance(spec.get("options"), dict):
        spec["options"] = {
            name: {**_shape(inner), "required": bool(inner.get("required"))}
            for name, inner in spec["options"].items()
        }
    return spec


def faults(values: dict[str, Any], known: dict[str, dict[str, Any]]) -> list[str]:
    """What is wrong with *values*; a secret's value is not told."""
    found = []
    for name, value in values.items():
        spec = known[name]
        wrong = ArgumentSpecValidator({name: spec}).validate({name: value}).error_messages
        if wrong and spec.get("no_log"):
            found.append(f"{name}: the value is not of type {spec.get('type', 'str')}")
        elif wrong:
            found.append(f"{name}: {'; '.join(str(text) for text in wrong)}")
        elif unfit := user_values.fault(name, value):
            found.append(f"{name}: the value {unfit}")
    return found
