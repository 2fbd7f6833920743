# SPDX-License-Identifier: Apache-2.0
"""A lock file that names a tag twice is refused alike by the depot's verbs and by the tasks of playbooks."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lemonade_deploy import content
from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.exits import Exit

ACTIONS = "ansible_collections.lemonade.deploy.plugins.action"
TAG = "vllm0.22.1-rocm7.13.0-gfx1151"
ENTRY = "{{family: gfx1151, assets: [{{name: a.tar.gz, size: 1, sha256: {0}}}]{1}}}"
HEAD = "schema: lemonade-deploy/lock/1\nreleases:\n"
ONE = f"{HEAD}  {TAG}: {ENTRY.format('a' * 64, ', qualification: unqualified')}\n"
# As a merge of two branches leaves it.
TWICE = f"{ONE}  {TAG}: {ENTRY.format('b' * 64, '')}\n"


@pytest.fixture(scope="module")
def actions() -> Iterator[dict[str, Any]]:
    """The action plugins, imported as Ansible imports them."""
    before = set(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(content.link_collection(Path(folder))))
        names = ("preflight", "vllm_bundle", "vllm_by_lemond")
        yield {name: importlib.import_module(f"{ACTIONS}.{name}") for name in names}
        del sys.path[0]
    for name in set(sys.modules) - before:
        if name.startswith("ansible_collections"):
            del sys.modules[name]


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lemonade-deploy.lock"


def run(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the task's result, the arguments that the module got; none where it was not run)."""
    got: dict[str, Any] = {}

    class Fake(plugin.ActionModule):  # type: ignore[misc]
        def __init__(self) -> None:
            self._task = SimpleNamespace(args=dict(arguments), check_mode=True)
            self._templar = SimpleNamespace(template=lambda value: value)

        def _execute_module(self, module_args: Any = None, **_more: Any) -> dict[str, Any]:
            got.update(self._task.args if module_args is None else module_args)
            return {"changed": False}

    base = importlib.import_module("ansible.plugins.action").ActionBase
    monkeypatch.setattr(base, "run", lambda *_args: {})
    return Fake().run(None, {}), got


@pytest.mark.parametrize(
    ("name", "layer"),
    [("preflight", "preflight"), ("vllm_bundle", "vllm_rocm"), ("vllm_by_lemond", "vllm_rocm")],
)
def test_a_task_refuses_it_as_the_depot_does(
    actions: dict[str, Any],
    lock: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    layer: str,
) -> None:
    lock.write_text(TWICE)
    assert dispatch(["depot", "fetch", "--lock", str(lock)]) == Exit.USAGE
    assert f"{TAG} stands there twice" in capsys.readouterr().err
    result, got = run(actions[name], monkeypatch, {"lock_file": str(lock)})
    assert (result["failed"], got) == (True, {})
    failure = result["failure"]
    assert failure["layer"] == layer
    assert failure["message"].startswith(f"{lock}: line 4: {TAG} stands there twice")
    assert "depot lock" in failure["remedy"]


def test_a_good_lock_reaches_the_modules(
    actions: dict[str, Any], lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.write_text(ONE)
    given = {"lock_file": str(lock)}
    for name in ("vllm_bundle", "vllm_by_lemond"):
        _result, got = run(actions[name], monkeypatch, given)
        assert list(got["lock"]["releases"]) == [TAG]
        _result, got = run(actions[name], monkeypatch, {**given, "lock": {"own": 1}})
        assert got["lock"] == {"own": 1}
    _result, got = run(actions["preflight"], monkeypatch, {**given, "judge_lock": "true"})
    assert (got["locked"], got["unqualified"], got["lock_there"]) == ([TAG], [TAG], True)
    _result, got = run(actions["preflight"], monkeypatch, {**given, "judge_lock": False})
    assert "locked" not in got and got["unqualified"] == [TAG]


def test_without_a_lock_the_modules_say_what_to_do(
    actions: dict[str, Any], lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"lock_file": str(lock)}
    result, got = run(actions["vllm_bundle"], monkeypatch, given)
    assert "failed" not in result and "lock" not in got
    _result, got = run(actions["preflight"], monkeypatch, {**given, "judge_lock": True})
    assert (got["locked"], got["lock_there"]) == ([], False)
    _result, got = run(actions["preflight"], monkeypatch, {"judge_lock": True, "unqualified": ["x"]})
    assert got == {"judge_lock": True, "unqualified": ["x"]}


def test_what_is_wrong_in_it_is_found_before_a_host_is_looked_at(
    actions: dict[str, Any], lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.write_text(ONE.replace("size: 1", "size: 0"))
    result, got = run(actions["preflight"], monkeypatch, {"lock_file": str(lock)})
    assert f"releases.{TAG}.assets[0].size: expected a number above 0" in result["msg"]
    assert got == {}


@pytest.mark.parametrize("kind", ["folder", "pipe", "long"])
def test_what_is_no_file_is_not_taken_for_a_missing_one(
    actions: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    given = tmp_path / ("a" * 300 if kind == "long" else "given")
    if kind == "pipe":
        os.mkfifo(given)
    elif kind == "folder":
        given.mkdir()
    result, got = run(actions["vllm_bundle"], monkeypatch, {"lock_file": str(given)})
    assert (result["failed"], got) == (True, {})
    said = "cannot be read: File name too long" if kind == "long" else "is no file but a folder"
    assert f"{given}: {said}" in result["failure"]["message"]
