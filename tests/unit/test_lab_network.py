# SPDX-License-Identifier: Apache-2.0
"""The lab ends what lives in its namespaces, and gives up on what does not end."""

from __future__ import annotations

import subprocess

import pytest

from lemonade_deploy.lab import network
from lemonade_deploy.lab.shell import LabError


def test_who_comes_meanwhile_is_ended_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    seen = [[process.pid] for process in sleepers]
    monkeypatch.setattr(network, "pids_in", lambda _netns: seen.pop(0) if seen else [])
    network.end_all("lab")
    assert [process.wait(10) for process in sleepers] == [-9, -9]


def test_what_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setattr(network, "pids_in", lambda _netns: [gone.pid])
    with pytest.raises(LabError, match=rf"do not end: \[{gone.pid}\]"):
        network.end_all("lab", patience=0)
