# SPDX-License-Identifier: Apache-2.0
"""The controller's side of activate: when it reboots, how often, and what it reports."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REBUILD = {"layer": "activate", "object": "initramfs", "action": "rebuild", "detail": ""}
PROMOTE = {"layer": "activate", "object": "grub default", "action": "promote", "detail": ""}


def load() -> Any:
    spec = importlib.util.spec_from_file_location(
        "activate_action", ROOT / "plugins" / "action" / "activate.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLUGIN = load()


class Fake(PLUGIN.ActionModule):  # type: ignore[misc, name-defined]
    """The plugin over scripted module results; ``reboots`` are failures ("" is a good one)."""

    def __init__(
        self, results: list[dict[str, Any]], *, check: bool = False, transport: str = "ssh", **args: Any
    ):
        self.results = results
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.boots = 0
        self.failure = ""
        self._task = SimpleNamespace(check_mode=check, args=args)
        self._connection = SimpleNamespace(transport=transport)

    def _module(self, state: str, variables: dict[str, Any], **more: Any) -> dict[str, Any]:
        self.calls.append((state, more))
        return self.results.pop(0)

    def _reboot(self, variables: dict[str, Any]) -> str:
        self.boots += 1
        return self.failure

    def go(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        monkeypatch.setattr(PLUGIN.ActionBase, "run", lambda *_args: {})
        result: dict[str, Any] = self.run(None, {})
        return result


def prepared(reboot: list[str], changes: list[dict[str, str]], boot_id: str = "b1") -> dict[str, Any]:
    return {
        "changed": bool(changes),
        "changes": changes,
        "reboot": reboot,
        "boot_id": boot_id,
        "rebooted": False,
        "reboot_required": False,
        "gpu": [],
        "kernel": "old",
    }


def proven(boot_id: str = "b2") -> dict[str, Any]:
    return {**prepared([], [PROMOTE], boot_id), "kernel": "new"}


def fallen(boot_id: str) -> dict[str, Any]:
    return {"failed": True, "wrong_kernel": True, "msg": "fell back", "boot_id": boot_id, "kernel": "old"}


def test_without_a_reason_there_is_one_module_call(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake([prepared([], [])])
    assert fake.go(monkeypatch)["changed"] is False
    assert (len(fake.calls), fake.boots) == (1, 0)


def test_check_mode_never_reboots(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake([prepared(["why"], [REBUILD])], check=True, transport="local")
    result = fake.go(monkeypatch)
    assert fake.boots == 0
    assert result["reboot_required"] is False, "later roles are predicted as well"


def test_one_boot_then_the_proof_and_all_changes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake([prepared(["why"], [REBUILD]), proven()])
    result = fake.go(monkeypatch)
    assert [state for state, _more in fake.calls] == ["prepare", "prove"]
    assert [(c["object"], c["action"]) for c in result["changes"]] == [
        ("initramfs", "rebuild"),
        ("host", "reboot"),
        ("grub default", "promote"),
    ]
    assert (result["rebooted"], result["changed"], result["kernel"], fake.boots) == (True, True, "new", 1)


@pytest.mark.parametrize("how", ["local", "by choice", "same machine"])
def test_this_very_machine_is_not_rebooted(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    own = Path(PLUGIN.BOOT_ID).read_text().strip()
    first = prepared(["why"], [REBUILD], own if how == "same machine" else "b1")
    arguments: dict[str, Any] = {"local": {"transport": "local"}, "by choice": {"reboot": False}}.get(how, {})
    fake = Fake([first], **arguments)
    result = fake.go(monkeypatch)
    assert (result["reboot_required"], result["rebooted"], fake.boots) == (True, False, 0)
    assert result["changes"] == [REBUILD]


def test_a_kernel_that_falls_back_gets_a_second_boot_and_no_third(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake([prepared(["why"], []), fallen("b2"), prepared(["why"], [], "b2"), fallen("b3")])
    result = fake.go(monkeypatch)
    assert (result["failed"], result["rebooted"], fake.boots) == (True, True, 2)
    assert fake.calls[2] == ("prepare", {"pending": []}), "no second rebuild"


def test_the_second_boot_may_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake([prepared(["why"], []), fallen("b2"), prepared(["why"], [], "b2"), proven("b3")])
    result = fake.go(monkeypatch)
    assert not result.get("failed")
    assert fake.boots == 2


def test_a_proof_that_fails_on_the_right_kernel_is_not_booted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake([prepared(["why"], [REBUILD]), {"failed": True, "msg": "cwsr", "boot_id": "b2"}])
    result = fake.go(monkeypatch)
    assert (result["failed"], fake.boots, result["changes"][0]) == (True, 1, REBUILD)


def test_a_host_that_did_not_really_boot_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake([prepared(["why"], []), proven("b1")])
    result = fake.go(monkeypatch)
    assert result["failed"] and "same boot" in result["failure"]["message"]


def test_a_host_that_does_not_come_back_is_a_failure_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake([prepared(["why"], [REBUILD])])
    fake.failure = "Timed out waiting for last boot time check"
    result = fake.go(monkeypatch)
    assert result["failed"] and result["failure"]["remedy"] and result["rebooted"]
