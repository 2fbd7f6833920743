# SPDX-License-Identifier: Apache-2.0
"""Back to the previous bundle, and lemond's restart as one step with every swap."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from bundle_host import Box, triples
from nasty import Nasty, bundle_members, publish, tar_gz

from lemonade_deploy.cli import rollback
from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.domain import (
    bundle_install,
    bundle_rollback,
    bundle_service,
    lemond_service,
    restart_mark,
)
from lemonade_deploy.domain.bundle import Tree
from lemonade_deploy.domain.bundle_rollback import State, target
from lemonade_deploy.domain.change import carry_out
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.lock import Release
from lemonade_deploy.domain.module import Refused
from lemonade_deploy.domain.paths import BUNDLE_RESTART_DUE, LEMOND_DEFAULTS
from lemonade_deploy.errors import UsageError
from lemonade_deploy.exits import Exit
from lemonade_deploy.prepare import Request

SWAP = [("current bundle", "link"), ("service lemond", "restart")]


class Lemond:
    """A lemond with the kit's settings; ``done`` is what was done to it, and with which bundle."""

    def __init__(self, box: Box) -> None:
        self.box, self.real = box, Host.run
        self.done: list[str] = []
        self.state = "ActiveState=active\nMainPID=4711\n"

    def run(self, host: Host, argv: Sequence[str], **options: Any) -> Completed:
        if argv[0] != "systemctl":
            return self.real(host, argv, **options)
        if argv[1] == "show":
            return Completed(tuple(argv), 0, self.state, "")
        self.done.append(f"{argv[1]} with {self.box.current}")
        return Completed(tuple(argv), 0, "", "")


@pytest.fixture
def lemond(box: Box, monkeypatch: pytest.MonkeyPatch) -> Lemond:
    """One that runs."""
    made = Lemond(box)
    monkeypatch.setattr(Host, "run", lambda host, argv, **options: made.run(host, argv, **options))
    live = "live {}".format
    monkeypatch.setattr(lemond_service, "await_live", lambda _host, url: made.done.append(live(url)))
    box.host.write(LEMOND_DEFAULTS, '{"host": "127.0.0.1", "port": 13399}')
    return made


def with_another(box: Box) -> Any:
    """The lock, which another run lets go only after its restart."""

    @contextlib.contextmanager
    def waited(*_arguments: Any) -> Iterator[int]:
        os.unlink(box.host.path(BUNDLE_RESTART_DUE))
        yield 0

    return waited


def roll(box: Box, to: str = "", check_mode: bool = False) -> list[tuple[str, str]]:
    return triples(carry_out(bundle_rollback.planner(box.host, to), box.host, check_mode))


def test_back_without_a_byte_fetched(box: Box, releases: list[Release], server: Nasty) -> None:
    box.run(releases[0])
    box.run(releases[1])
    server.requests.clear()
    assert roll(box, check_mode=True) == [("current bundle", "link")]
    assert box.current == releases[1].tag
    assert roll(box) == [("current bundle", "link")]
    assert box.current == releases[0].tag
    assert server.requests == []


def test_a_second_call_stays_there(box: Box, releases: list[Release]) -> None:
    box.run(releases[0])
    box.run(releases[1])
    roll(box)
    assert roll(box) == []
    assert box.current == releases[0].tag


def test_forward_by_name_and_by_the_next_run(box: Box, releases: list[Release]) -> None:
    box.run(releases[0])
    box.run(releases[1])
    roll(box)
    assert roll(box, releases[1].tag) == [("current bundle", "link")]
    assert roll(box, releases[1].tag) == []
    # It is current again, so the previous one is a place to go back to as before.
    assert roll(box) == [("current bundle", "link")]
    assert box.run(releases[1]) == [("current bundle", "link")]
    assert roll(box) == [("current bundle", "link")]
    assert box.current == releases[0].tag


def test_back_to_an_earlier_build_of_the_same_tag(box: Box, server: Nasty) -> None:
    """The folder of the first build is the tag, which the second one, now current, has too."""
    tag = "vllm3-rocm7-gfx1151"
    for number in range(2):
        box.run(publish(server, tar_gz(bundle_members(number)), tag=tag)[0])
    assert box.current != tag
    assert roll(box) == [("current bundle", "link")]
    assert box.current == tag


def test_of_several_the_one_that_was_current_last(box: Box, releases: list[Release]) -> None:
    for release in (releases[2], releases[0], releases[1]):
        box.run(release, keep=2)
    roll(box)
    assert box.current == releases[0].tag


def test_nothing_to_go_back_to_is_said(box: Box, releases: list[Release]) -> None:
    with pytest.raises(Refused, match=r"no previous bundle.*there: none"):
        roll(box)
    box.run(releases[0])
    with pytest.raises(Refused, match=rf"{releases[0].tag} \(current\)"):
        roll(box)
    with pytest.raises(Refused, match="No sound bundle vllm9 is on this host"):
        roll(box, "vllm9")
    assert box.current == releases[0].tag


def test_a_damaged_tree_is_no_place_to_go_back_to(box: Box, releases: list[Release]) -> None:
    box.run(releases[0])
    box.run(releases[1])
    shutil.rmtree(box.place(releases[0].tag, "bin"))
    with pytest.raises(Refused, match=rf"{releases[0].tag} \(damaged\)"):
        roll(box)


def test_a_tree_that_never_was_current_is_not_the_previous_one() -> None:
    trees = tuple(Tree(name, name, "x", "y", 1, at) for name, at in (("a", 5.0), ("b", 0.0), ("c", 9.0)))
    assert target(State(trees, "c")).name == "a"


def test_a_link_to_a_tree_that_is_gone(box: Box, releases: list[Release]) -> None:
    box.run(releases[0])
    box.run(releases[1])
    shutil.rmtree(box.place(releases[1].tag))
    assert roll(box) == [("current bundle", "link")]
    assert box.current == releases[0].tag


def test_lemond_restarts_after_every_swap(box: Box, releases: list[Release], lemond: Lemond) -> None:
    box.run(releases[0])
    lemond.done.clear()
    assert box.run(releases[1], check_mode=True) == box.run(releases[1]) == [("bundle", "install"), *SWAP]
    restarted = f"restart with {releases[1].tag}"
    assert lemond.done == [f"reset-failed with {releases[1].tag}", restarted, "live http://127.0.0.1:13399"]
    assert box.run(releases[1]) == []
    assert roll(box) == SWAP
    assert f"restart with {releases[0].tag}" in lemond.done
    assert not restart_mark.due(box.host)


def test_killed_between_swap_and_restart_the_next_run_restarts(
    box: Box, releases: list[Release], lemond: Lemond, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.run(releases[0])
    box.run(releases[1])

    def killed(_host: Host, _endpoint: str) -> None:
        raise KeyboardInterrupt

    for again in (lambda: box.run(releases[0]), lambda: roll(box, releases[1].tag)):
        with monkeypatch.context() as patched:
            patched.setattr(lemond_service, "await_live", killed)
            with pytest.raises(KeyboardInterrupt):
                again()
        assert restart_mark.due(box.host)
        lemond.done.clear()
        assert again() == [("service lemond", "restart")]
        assert lemond.done[-1].startswith("live")
        assert again() == []


@pytest.mark.parametrize(
    ("state", "restarted"),
    [
        ("ActiveState=activating\nMainPID=0\nJob=77\n", True),
        ("ActiveState=deactivating\nMainPID=4711\nJob=78\n", True),  # half of a restart
        ("ActiveState=activating\nMainPID=0\nJob=77\nNRestarts=3\n", False),  # lemonade_server's to repair
        ("ActiveState=inactive\nMainPID=0\nJob=0\n", False),
    ],
)
def test_a_daemon_on_its_way_takes_the_new_bundle_too(
    box: Box, releases: list[Release], lemond: Lemond, state: str, restarted: bool
) -> None:
    """A unit that waits for the GPU, or loads, would stay in the old tree."""
    box.run(releases[0])
    lemond.state = state
    lemond.done.clear()
    assert (("service lemond", "restart") in box.run(releases[1])) == restarted
    assert ("live http://127.0.0.1:13399" in lemond.done) == restarted


def test_who_waited_for_another_runs_restart_does_not_restart_again(
    box: Box, releases: list[Release], lemond: Lemond, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module of a killed controller lives on: the next run waits until lemond answers."""
    box.run(releases[0])
    lemond.done.clear()
    monkeypatch.setattr(bundle_service, "alone", with_another(box))
    assert box.run(releases[1])[-1] == ("service lemond", "restart")
    assert lemond.done == []


def test_a_restart_of_another_run_before_the_swap_is_not_enough(
    box: Box, releases: list[Release], lemond: Lemond, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.run(releases[0])
    lemond.done.clear()

    def swap(host: Host, name: str) -> None:
        os.unlink(host.path(BUNDLE_RESTART_DUE))  # its restart took the mark away, with the old bundle
        real(host, name)

    real = bundle_install.activate
    monkeypatch.setattr(bundle_install, "activate", swap)
    box.run(releases[1])
    assert f"restart with {releases[1].tag}" in lemond.done


def test_a_swap_while_lemond_is_starting_gets_a_restart_of_its_own(
    box: Box, releases: list[Release], lemond: Lemond, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's start takes minutes: it may have read the link before another run swapped it."""
    box.run(releases[0])
    lemond.done.clear()
    swaps = [restart_mark.SET]  # of another run, once

    def live(host: Host, _endpoint: str) -> None:
        lemond.done.append("live")
        while swaps:
            swaps.pop().apply(host)

    monkeypatch.setattr(lemond_service, "await_live", live)
    box.run(releases[1])
    assert [one.split()[0] for one in lemond.done] == ["reset-failed", "restart", "live"] * 2


def test_a_lemond_that_is_not_ours_is_left_alone(box: Box, releases: list[Release], lemond: Lemond) -> None:
    Path(box.host.path(LEMOND_DEFAULTS)).unlink()
    box.run(releases[0])
    box.run(releases[1])
    roll(box)
    assert lemond.done == []
    assert not restart_mark.due(box.host)


def test_a_start_of_lemond_settles_the_restart() -> None:
    change = lemond_service._service_change("start", "http://127.0.0.1:1")
    steps = [getattr(operation, "argv", operation) for operation in change.operations]
    assert steps.index(restart_mark.TAKE) == steps.index(("systemctl", "restart", "lemond.service")) - 1
    assert restart_mark.SETTLE in steps[steps.index(restart_mark.TAKE) :]


def test_what_is_to_go_back_must_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["rollback", "-i", "localhost,"]) == Exit.USAGE
    assert "--bundle" in capsys.readouterr().err


def test_the_bundle_to_go_to_reaches_ansible_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `key=value` a blank would end it: another bundle than the one that was named."""
    asked: list[Request] = []

    def execute(request: Request, *_more: Any) -> Any:
        asked.append(request)
        raise UsageError("enough")

    monkeypatch.setattr(rollback, "execute", execute)
    assert dispatch(["rollback", "--bundle", "--to", "a b", "-i", "localhost,"]) == Exit.USAGE
    assert [json.loads(one) for one in asked[0].extra_vars] == [{"rollback_to": "a b"}]
