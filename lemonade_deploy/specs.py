# SPDX-License-Identifier: Apache-2.0
"""The variables the kit's roles take, read from their meta/argument_specs.yml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lemonade_deploy.content import content_root

# Keys of a spec that say what a value may be; the rest (description, default …) is for people.
_SHAPE = ("type", "choices", "elements", "options", "apply_defaults")


@dataclass(frozen=True)
class Specs:
    """Role name → variable → spec."""

    roles: dict[str, dict[str, dict[str, Any]]]

    def role_of(self, variable: str) -> str | None:
        """The role whose prefix *variable* carries; the longest where two fit."""
        fitting = [role for role in self.roles if variable.startswith(role + "_")]
        return max(fitting, key=len) if fitting else None

    def names(self) -> list[str]:
        """Every variable of every role."""
        return sorted(name for variables in self.roles.values() for name in variables)

    def secret_names(self) -> list[str]:
        """The variables whose spec says ``no_log``."""
        return sorted(
            name
            for variables in self.roles.values()
            for name, spec in variables.items()
            if spec.get("no_log")
        )

    def find(self, variable: str) -> dict[str, Any] | None:
        """The spec of *variable*, or None. A longer prefix does not hide a shorter role's."""
        for variables in self.roles.values():
            if variable in variables:
                return variables[variable]
        return None


def load(root: Path | None = None) -> Specs:
    """Read the specs below *root*/roles (default: the kit's own content)."""
    roles: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted(((root or content_root()) / "roles").glob("*/meta/argument_specs.yml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        options: dict[str, dict[str, Any]] = {}
        for entry in (document.get("argument_specs") or {}).values():
            options.update(entry.get("options") or {})
        roles[path.parent.parent.name] = options
    return Specs(roles)


def shape(spec: dict[str, Any]) -> dict[str, Any]:
    """*spec* reduced to what Ansible's own validator needs to judge a value."""
    reduced = {key: spec[key] for key in _SHAPE if key in spec}
    reduced.setdefault("type", "str")
    if isinstance(reduced.get("options"), dict):
        reduced["options"] = {
            name: {**shape(inner), **({"required": True} if inner.get("required") else {})}
            for name, inner in reduced["options"].items()
        }
    return reduced
