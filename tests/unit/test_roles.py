# SPDX-License-Identifier: Apache-2.0
"""The roles' contract: defaults equal their argument specs, names carry the role's prefix, modules agree."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
ORDER = [
    "preflight",
    "amdgpu_driver",
    "kernel",
    "gpu_memory",
    "activate",
    "vllm_rocm",
    "lemonade_server",
    "models",
    "verify",
]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) if path.exists() else None


def specs(role: str) -> dict[str, Any]:
    (entry,) = load(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"].values()
    options: dict[str, Any] = entry["options"]
    return options


def defaults(role: str) -> dict[str, Any]:
    return load(ROOT / "roles" / role / "defaults" / "main.yml") or {}


def test_every_layer_is_a_role() -> None:
    assert sorted(ORDER) == ROLES


@pytest.mark.parametrize("role", ORDER)
def test_defaults_equal_argument_specs(role: str) -> None:
    stated = {name: option["default"] for name, option in specs(role).items() if "default" in option}
    assert stated == defaults(role)
    without = [name for name, option in specs(role).items() if "default" not in option]
    assert not set(without) & set(defaults(role))


@pytest.mark.parametrize("role", ORDER)
def test_variables_carry_the_roles_prefix_and_a_description(role: str) -> None:
    for name, option in specs(role).items():
        assert name.startswith(f"{role}_"), name
        assert option.get("description"), name
        assert option.get("type"), name


@pytest.mark.parametrize("role", ORDER)
def test_tasks_call_modules_by_their_full_name(role: str) -> None:
    for path in (ROOT / "roles" / role / "tasks").glob("*.yml"):
        for task in load(path):
            modules = [key for key in task if re.fullmatch(r"[a-z_0-9]+\.[a-z_0-9]+\.[a-z_0-9]+", key)]
            assert len(modules) == 1 or "block" in task, f"{path}: {task}"
            for module in modules:
                assert module.startswith(("ansible.builtin.", "lemonade.deploy.")), module


def test_site_applies_the_layers_in_order() -> None:
    play = load(ROOT / "playbooks" / "site.yml")[0]
    imported = [task["ansible.builtin.import_role"] for task in play["tasks"]]
    names = [*(role["role"] for role in play["roles"]), *(role["name"] for role in imported)]
    assert [name.removeprefix("lemonade.deploy.") for name in names] == ORDER
    assert not any(role["rolespec_validate"] for role in imported), "preflight judges all variables"


def argument_spec(module: str) -> dict[str, Any]:
    """Options of a module as its DOCUMENTATION states them (sanity compares that with the code)."""
    tree = ast.parse((ROOT / "plugins" / "modules" / f"{module}.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DOCUMENTATION":
            return yaml.safe_load(ast.literal_eval(node.value))["options"]
    raise AssertionError(f"{module} has no DOCUMENTATION")


def test_preflight_defaults_are_those_of_the_roles_they_come_from() -> None:
    """preflight takes other roles' wishes with default(omit): then its own default must be theirs."""
    task = load(ROOT / "roles" / "preflight" / "tasks" / "main.yml")[0]
    options = argument_spec("preflight")
    compared = 0
    for argument, template in task["lemonade.deploy.preflight"].items():
        match = re.search(r"\{\{\s*([a-z_0-9]+)\s*\|\s*default\(omit\)", str(template))
        if match is None:
            continue
        owner = next(role for role in ORDER if match[1].startswith(f"{role}_"))
        assert str(options[argument].get("default", "")) == str(defaults(owner)[match[1]]), match[1]
        compared += 1
    assert compared >= 5


def test_doctor_wishes_what_a_run_wishes() -> None:
    (task,) = load(ROOT / "roles" / "preflight" / "tasks" / "main.yml")
    (play,) = load(ROOT / "playbooks" / "doctor.yml")
    asked = task["lemonade.deploy.preflight"]
    told = play["tasks"][0]["lemonade.deploy.preflight"]
    wishes = {name for name in asked if re.match(r"(amdgpu_driver|kernel|gpu_memory)_", name)}
    assert {name: told.get(name) for name in wishes} == {name: asked[name] for name in wishes}
