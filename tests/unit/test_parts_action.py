# SPDX-License-Identifier: Apache-2.0
"""Tasks that call their module several times: a failure of one part tells what the others have made."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from plugin_kit import load

from lemonade_deploy.domain.change import Call, Change
from lemonade_deploy.domain.host import Host

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


def slice_of(
    module: Any, over: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **args: Any
) -> tuple[list[Change], Any]:
    """Two changes, in the second of which the *module*'s time is *over*, and its arguments set."""

    def raises(_host: Host) -> None:
        raise over

    monkeypatch.setattr(module, "Host", lambda: Host(str(tmp_path)))
    first = Change("l", "first", "make", operations=(Call(lambda _host: None),))
    return [first, Change("l", "second", "make", operations=(Call(raises),))], patch_module_args(args)


def answer(module: Any, arguments: Any, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """The objects that the module says were made, and were planned."""
    with arguments, pytest.raises(SystemExit):
        module.main()
    told = json.loads(capsys.readouterr().out)
    assert told["more"]
    return [one["object"] for one in told["made"]], [one["object"] for one in told["changes"]]


def test_a_slice_of_a_download_tells_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("modules.lemonade_model")
    over = module.hub_cache.OutOfTime(1, 2, "f")
    args = {"models": [], "daemon": "lemond", "endpoint": "http://127.0.0.1:9"}
    changes, arguments = slice_of(module, over, tmp_path, monkeypatch, **args)
    models = SimpleNamespace(plan=lambda: changes, load=None, planned=changes)
    monkeypatch.setattr(module, "Models", lambda *_args: models)
    assert answer(module, arguments, capsys) == (["first"], ["first", "second"])


def test_a_slice_of_lemonds_installation_tells_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("modules.vllm_by_lemond")
    over = module.More(SimpleNamespace(text=lambda: "half"))
    changes, arguments = slice_of(module, over, tmp_path, monkeypatch, tag="t", family="f")
    monkeypatch.setattr(module, "locked_release", lambda *_args: SimpleNamespace(tag="t"))
    monkeypatch.setattr(module, "unqualified", lambda *_args: "")
    monkeypatch.setattr(module.lemond_install, "plan", lambda *_args: changes)
    assert answer(module, arguments, capsys) == (["first"], ["first", "second"])
