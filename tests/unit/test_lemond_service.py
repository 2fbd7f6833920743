# SPDX-License-Identifier: Apache-2.0
"""When the service is written, started, restarted, enabled, and when it is left alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lemonade_deploy.domain import gpu_check, lemond_service, paths, systemd
from lemonade_deploy.domain.change import Change, Remove, WriteFile
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.lemond_service import HF_HOME, HOME_CACHE, Current, Desired, plan
from lemonade_deploy.domain.refusal import Refused
from lemonade_deploy.domain.systemd import UnitState

DESIRED = Desired("unit text\n", "{}\n", 'LEMONADE_API_KEY="k"\n')
RUNNING = UnitState("loaded", "active", "enabled", paths.LEMOND_UNIT, (), 42, "success")
CHECK = gpu_check.script()
DONE = Current(DESIRED.unit, DESIRED.settings, DESIRED.secrets, True, "linked", RUNNING, False, CHECK)
FRESH = Current(None, None, None, False, "missing", UnitState(), False, None)


def names(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.object, change.action) for change in changes]


def planned(current: Current, desired: Desired = DESIRED) -> list[Change]:
    return plan(current, desired, "http://127.0.0.1:13305")


def test_nothing_to_do() -> None:
    assert planned(DONE) == []


def test_everything_on_a_fresh_host() -> None:
    assert names(planned(FRESH)) == [
        ("folder /var/lib/lemonade/.cache/huggingface", "link"),
        ("gpu check", "write"),
        ("lemond secrets", "write"),
        ("unit lemond.service", "write"),
        ("lemond settings", "write"),
        ("service lemond", "start"),
    ]


def test_the_packages_own_enabling_does_not_change_the_plan() -> None:
    """Between the prediction and the run the package's scripts may enable the unit."""
    enabled = replace(FRESH, state=UnitState("loaded", "inactive", "enabled"))
    assert names(planned(enabled)) == names(planned(FRESH))


@pytest.mark.parametrize("field", ["unit", "settings", "secrets", "gpu_check"])
def test_a_changed_file_restarts(field: str) -> None:
    changes = planned(replace(DONE, **{field: "older"}))
    assert len(changes) == 2
    assert names(changes)[-1] == ("service lemond", "restart")


def test_a_run_that_died_before_the_restart_is_taken_up() -> None:
    assert names(planned(replace(DONE, restart_due=True))) == [("service lemond", "restart")]


def test_the_mark_is_set_before_the_first_file_and_removed_after_the_restart() -> None:
    changes = planned(replace(DONE, unit="older"))
    assert changes[0].operations[0] == WriteFile(paths.LEMOND_RESTART_DUE, "")
    assert changes[-1].operations[-1] == Remove(paths.LEMOND_RESTART_DUE)


@pytest.mark.parametrize("active", ["failed", "inactive", "activating"])
def test_a_service_that_does_not_run_is_started(active: str) -> None:
    state = UnitState("loaded", active, "enabled", main_pid=0)
    assert names(planned(replace(DONE, state=state))) == [("service lemond", "start")]


def test_a_disabled_service_is_enabled_without_a_restart() -> None:
    assert names(planned(replace(DONE, state=replace(RUNNING, enabled="disabled")))) == [
        ("service lemond", "enable")
    ]


def test_secrets_are_private_and_never_in_a_diff() -> None:
    change = next(c for c in planned(replace(DONE, secrets_private=False)) if c.object == "lemond secrets")
    (operation,) = change.operations[1:] if len(change.operations) > 1 else change.operations
    assert isinstance(operation, WriteFile)
    assert (operation.mode, operation.owner) == (0o600, (0, 0))
    assert change.diff() is None
    assert "LEMONADE_API_KEY" not in str(change.public())


def test_secrets_that_are_no_longer_wanted_go() -> None:
    changes = planned(DONE, replace(DESIRED, secrets=""))
    assert names(changes) == [("lemond secrets", "remove"), ("service lemond", "restart")]


def test_systemctl_show_is_read() -> None:
    text = "ActiveState=active\nUnitFileState=enabled\nMainPID=77\nDropInPaths=/a.conf /b.conf\n"
    state = systemd.parse(text)
    assert state.running
    assert state.drop_ins == ("/a.conf", "/b.conf")
    assert not systemd.parse("ActiveState=activating\nMainPID=0\n").running


SERVICE = 12345  # the service's user


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host whose service's user there is, and who owns its home."""
    monkeypatch.setattr(
        lemond_service.pwd, "getpwnam", lambda _name: SimpleNamespace(pw_uid=SERVICE, pw_gid=SERVICE)
    )
    (tmp_path / "var/lib/lemonade").mkdir(parents=True)
    os.chown(tmp_path / "var/lib/lemonade", SERVICE, SERVICE)
    (tmp_path / "var/cache").mkdir()
    return Host(str(tmp_path))


def owner(host: Host, path: str) -> int:
    return os.stat(host.path(path)).st_uid


@pytest.mark.skipif(os.geteuid() != 0, reason="chown")
def test_the_model_folder_may_lie_on_another_disk(box: Host, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    os.symlink("/data", tmp_path / "var/cache/huggingface")  # root's
    lemond_service.link_cache(box)
    assert (box.readlink(HOME_CACHE), owner(box, "/data")) == (HF_HOME, SERVICE)


@pytest.mark.skipif(os.geteuid() != 0, reason="chown")
@pytest.mark.parametrize("maker", [SERVICE, 0])
def test_the_services_user_is_given_nothing_that_it_links_to(box: Host, tmp_path: Path, maker: int) -> None:
    """In its own home it could have put the link there, whoever the link belongs to."""
    (tmp_path / "etc").mkdir()
    link = tmp_path / "var/lib/lemonade/.cache"
    link.symlink_to(tmp_path / "etc")
    os.lchown(link, maker, maker)
    with pytest.raises(Refused, match="root does not follow it"):
        lemond_service.link_cache(box)
    assert owner(box, "/etc") == 0 and box.listdir("/etc") == []
