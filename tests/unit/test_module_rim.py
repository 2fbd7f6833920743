# SPDX-License-Identifier: Apache-2.0
"""The rim of a module: what it returns where its work ends with an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_module import Module

from lemonade_deploy.domain import module as rim
from lemonade_deploy.domain.change import Call, Change
from lemonade_deploy.domain.host import CommandFailed, Completed, Host
from lemonade_deploy.domain.refusal import Refused


def run(tmp_path: Path, check_mode: bool, error: Exception) -> dict[str, Any]:
    """Three changes, of which the second fails."""

    def fails(_host: Host) -> None:
        raise error

    works = (Call(lambda _host: None),)
    changes = [
        Change("kernel", "package a", "install", "1.0", before="", after="1.0", operations=works),
        Change("kernel", "package b", "install", operations=(Call(fails),)),
        Change("kernel", "package c", "install", operations=works),
    ]
    module = Module(check_mode)
    rim.run_module(module, "kernel", lambda: changes, Host(str(tmp_path)))
    return module.said


@pytest.mark.parametrize(
    "error",
    [
        Refused("b is broken.", "Mend it."),
        CommandFailed(Completed(("apt-get",), 100, "", "b is broken.")),
        OSError("b is broken."),
    ],
)
def test_what_was_changed_before_an_error_is_told(tmp_path: Path, error: Exception) -> None:
    told = run(tmp_path, False, error)
    assert "b is broken." in told["failure"]["message"]
    assert [change["object"] for change in told["changes"]] == ["package a"]
    assert told["changed"]
    assert [diff["after"] for diff in told["diff"]] == ["1.0"]


def test_a_check_foresees_all_of_it(tmp_path: Path) -> None:
    told = run(tmp_path, True, OSError())
    assert [change["object"] for change in told["changes"]] == ["package a", "package b", "package c"]


def test_an_error_before_the_first_change_changed_nothing(tmp_path: Path) -> None:
    def plan() -> list[Change]:
        raise Refused("no.", "")

    module = Module()
    rim.run_module(module, "kernel", plan, Host(str(tmp_path)))
    assert (module.said["changed"], module.said["changes"]) == (False, [])


def test_what_is_still_to_do_was_not_made(tmp_path: Path) -> None:
    """An operation that did nothing, without an error of its own."""
    nothing = (Call(lambda _host: None),)
    pin = Change("kernel", "grub default", "pin", operations=nothing)
    plans = iter([[Change("kernel", "package a", "install", operations=nothing), pin], [pin]])
    module = Module()
    rim.run_module(module, "kernel", lambda: next(plans), Host(str(tmp_path)))
    assert "applied, but still to do: grub default: pin" in module.said["msg"]
    assert [change["object"] for change in module.said["changes"]] == ["package a"]
