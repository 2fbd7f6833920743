# SPDX-License-Identifier: Apache-2.0
"""Tasks that call their module several times: a failure of one part tells what the others have made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from plugin_kit import load

MODEL = load("action.lemonade_model")
VLLM = load("action.vllm_by_lemond")
PACKAGES = {"layer": "vllm_rocm", "object": "packages", "action": "install", "detail": ""}
REGISTER = {"layer": "models", "object": "model user.A", "action": "register", "detail": ""}
PULL = {"layer": "models", "object": "model user.A", "action": "pull", "detail": ""}
BUNDLE = {"layer": "vllm_rocm", "object": "bundle", "action": "install", "detail": ""}
FAILED = {"failed": True, "msg": "no", "changed": False, "changes": []}


def go(plugin: Any, answers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, **args: Any) -> Any:
    """The task's result over the *answers* of its module."""
    action = plugin.ActionModule.__new__(plugin.ActionModule)
    action._task = SimpleNamespace(check_mode=False, args=args)
    monkeypatch.setattr(plugin.ActionBase, "run", lambda *_args: {})
    monkeypatch.setattr(plugin.ActionModule, "_execute_module", lambda *_args, **_more: answers.pop(0))
    monkeypatch.setattr(plugin, "tell", lambda *_args: None)
    result = action.run(None, {"inventory_hostname": "a"})
    assert not answers
    return result


def going_on(made: list[dict[str, str]], planned: list[dict[str, str]]) -> dict[str, Any]:
    """The answer of a module whose slice of time is over."""
    progress = {"done": 1, "total": 2, "file": "f"}
    return {"changed": True, "changes": planned, "made": made, "more": True, "progress": progress}


def done(changes: list[dict[str, str]]) -> dict[str, Any]:
    return {"changed": bool(changes), "changes": changes, "more": False, "progress": "", "bundle": {}}


@pytest.mark.parametrize(
    ("answers", "changes"),
    [
        # What was only planned when the download broke is not told as made.
        ([going_on([REGISTER], [REGISTER, PULL]), FAILED], [REGISTER]),
        ([going_on([REGISTER], [REGISTER, PULL]), done([PULL]), FAILED], [REGISTER, PULL]),
        ([done([REGISTER, PULL]), FAILED], [REGISTER, PULL]),
        ([{**FAILED, "changed": True, "changes": [REGISTER]}], [REGISTER]),
        ([FAILED], []),
    ],
)
def test_models(answers: list[dict[str, Any]], changes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result = go(MODEL, list(answers), monkeypatch)
    assert (result["failed"], result["changes"], result["changed"]) == (True, changes, bool(changes))


def test_a_download_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    result = go(MODEL, [going_on([REGISTER], [REGISTER, PULL])], monkeypatch, pull_timeout=1e-9)
    assert "not complete after" in result["failure"]["message"]
    assert (result["changes"], result["changed"]) == ([REGISTER], True)


def test_all_went_well(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [going_on([REGISTER], [REGISTER, PULL]), done([PULL]), done([])]
    assert go(MODEL, answers, monkeypatch)["changes"] == [REGISTER, PULL]


def test_lemond_as_installer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VLLM.lock_file, "with_lock", lambda arguments: arguments)
    first = going_on([PACKAGES], [PACKAGES, BUNDLE])
    result = go(VLLM, [first, FAILED], monkeypatch)
    assert (result["changes"], result["changed"]) == ([PACKAGES], True)
    assert go(VLLM, [first, done([BUNDLE])], monkeypatch)["changes"] == [PACKAGES, BUNDLE]
