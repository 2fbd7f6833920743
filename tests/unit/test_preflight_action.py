# SPDX-License-Identifier: Apache-2.0
"""All roles' variables are judged in one place, before a host is looked at."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from plugin_kit import load

ROOT = Path(__file__).resolve().parents[2]


PLUGIN = load("action.preflight")


class Fake(PLUGIN.ActionModule):  # type: ignore[misc, name-defined]
    """The plugin whose module call is counted."""

    def __init__(self) -> None:
        self.calls = 0
        self._task = SimpleNamespace(args={})
        self._templar = SimpleNamespace(template=lambda value: 7 if value == "{{ seven }}" else value)

    def _execute_module(self, **_arguments: Any) -> dict[str, Any]:
        self.calls += 1
        return {"changed": False}

    def go(self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any]) -> dict[str, Any]:
        monkeypatch.setattr(PLUGIN.ActionBase, "run", lambda *_args: {})
        result: dict[str, Any] = self.run(None, variables)
        return result


def test_every_variable_of_every_role_is_known_with_its_default() -> None:
    known = PLUGIN.specs(ROOT / "roles")
    for path in (ROOT / "roles").glob("*/defaults/main.yml"):
        values = {name: value for name, value in (yaml.safe_load(path.read_text()) or {}).items()}
        assert set(values) <= set(known), path
        plain = {name: value for name, value in values.items() if "{{" not in str(value)}
        assert PLUGIN.faults(plain, known) == [], path


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"kernel_source": "banana"}, "kernel_source: value of kernel_source must be one of"),
        ({"verify_timeout": "soon"}, "verify_timeout"),
        ({"kernel_hold": "maybe"}, "kernel_hold"),
        (
            {"lemonade_server_environment": {"A": "0\nUser=root"}},
            "lemonade_server_environment: the value cont",
        ),
        ({"models_hub_url": "https://m/\rx"}, "models_hub_url: the value contains a line break"),
        (
            {"lemonade_server_vllm_args": "--api-key x"},
            "lemonade_server_vllm_args: the value holds --api-key",
        ),
        ({"kernel_source": "banana", "kernel_confirm_timeout": "x"}, "; kernel_"),
    ],
)
def test_a_wrong_value_stops_before_the_host(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any], named: str
) -> None:
    fake = Fake()
    result = fake.go(monkeypatch, variables)
    assert (result["failed"], fake.calls) == (True, 0)
    assert named in result["failure"]["message"]
    assert result["failure"]["layer"] == "preflight"
    assert ". Correct these variables" in result["msg"]


def test_good_values_foreign_ones_and_templates_reach_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    variables = {"kernel_source": "hwe", "other": object(), "kernel_version": None}
    assert not fake.go(monkeypatch, variables | {"verify_timeout": "{{ seven }}"}).get("failed")
    assert fake.calls == 1


def test_a_secrets_value_is_not_told() -> None:
    known = {"k": {"type": "int", "no_log": True}}
    (text,) = PLUGIN.faults({"k": "s3cret"}, known)
    assert "s3cret" not in text and "k: the value is not of type int" in text
