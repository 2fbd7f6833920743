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
        self.patience: list[int] = []
        self._task = SimpleNamespace(check_mode=check, args=args)
        self._connection = SimpleNamespace(transport=transport)

    def _module(self, state: str, variables: dict[str, Any], **more: Any) -> dict[str, Any]:
        self.calls.append((state, more))
        return self.results.pop(0)

    def _reboot(self, variables: dict[str, Any], patience: int) -> str:
        self.boots += 1
        self.patience.append(patience)
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


def test_a_kernel_that_fell_back_ends_the_run_after_one_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake([{**prepared(["why"], []), "trial": "new"}, fallen("b2")], confirm_timeout=77)
    result = fake.go(monkeypatch)
    assert (result["failed"], result["rebooted"], fake.boots) == (True, True, 1)
    assert fake.patience == [77], "the host's own way back is waited for"


def test_a_kernel_that_came_up_unproven_is_left_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"layer": "activate", "message": "no cwsr_size", "remedy": "choose another"}
    unproven = {**fallen("b2"), "trial": "new", "kernel": "new", "failure": told}
    fake = Fake([{**prepared(["why"], [REBUILD]), "trial": "new"}, unproven, prepared([], [], "b3")])
    result = fake.go(monkeypatch)
    assert [state for state, _more in fake.calls] == ["prepare", "prove", "back"]
    assert (result["failed"], result["kernel"], fake.boots) == (True, "old", 2)
    assert "no cwsr_size; the box was booted back into old" in result["failure"]["message"]
    assert result["changes"][0] == REBUILD


def test_an_earlier_runs_trial_that_is_not_proven_is_left_and_all_of_it_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"layer": "activate", "message": "no cwsr_size", "remedy": ""}
    unproven = {**fallen("b1"), "trial": "new", "kernel": "new", "failure": told, "changes": [REBUILD]}
    fake = Fake([unproven, prepared([], [], "b2")])
    result = fake.go(monkeypatch)
    assert (result["failed"], result["changed"], result["rebooted"], fake.boots) == (True, True, True, 1)
    assert [(c["object"], c["action"]) for c in result["changes"]] == [
        ("initramfs", "rebuild"),
        ("host", "reboot"),
    ]


def test_a_way_back_that_fails_is_told_with_the_reason_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"layer": "activate", "message": "no cwsr_size", "remedy": ""}
    unproven = {**fallen("b2"), "trial": "new", "kernel": "new", "failure": told}
    fake = Fake([{**prepared(["why"], []), "trial": "new"}, unproven, {**prepared([], []), "kernel": "new"}])
    message = fake.go(monkeypatch)["failure"]["message"]
    assert "no cwsr_size; the boot back into the old kernel failed: new runs again" in message


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
