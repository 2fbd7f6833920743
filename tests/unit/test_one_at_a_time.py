# SPDX-License-Identifier: Apache-2.0
"""Two runs on one host: the module of a killed controller lives on, and the next run waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_module import Module

from lemonade_deploy.domain import module as rim
from lemonade_deploy.domain.alone import alone
from lemonade_deploy.domain.change import Call, Change
from lemonade_deploy.domain.host import Host


def work(tmp_path: Path, check_mode: bool = False) -> dict[str, Any]:
    """A module that installs, on the host below *tmp_path*."""
    module, host = Module(check_mode), Host(str(tmp_path))
    host.write("/due", "")
    due = Call(lambda h: Path(h.path("/due")).unlink())

    def plan() -> list[Change]:
        return [Change("kernel", "kernel", "install", operations=(due,))] if host.exists("/due") else []

    rim.run_module(module, "kernel", plan, host, lock=rim.SYSTEM_LOCK)
    return module.said


def test_who_waits_in_vain_is_told_and_has_changed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rim, "LOCK_WAIT", 0.0)
    with alone(Host(str(tmp_path)), rim.SYSTEM_LOCK, 0, "x"):
        said = work(tmp_path)
    assert "Another run has been changing driver or kernel on this host" in said["msg"]
    assert "run the same command again" in said["failure"]["remedy"]
    assert (tmp_path / "due").exists()
    assert work(tmp_path)["changed"] is True  # the other one has ended


def test_check_mode_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rim, "LOCK_WAIT", 0.0)
    with alone(Host(str(tmp_path)), rim.SYSTEM_LOCK, 0, "x"):
        assert work(tmp_path, check_mode=True)["changed"] is True
    (tmp_path / "run/lemonade-deploy-system.lock").unlink()
    work(tmp_path, check_mode=True)
    assert not (tmp_path / "run/lemonade-deploy-system.lock").exists()
