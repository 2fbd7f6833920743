# SPDX-License-Identifier: Apache-2.0
"""A request from its checks to its results; run, doctor and demo share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lemonade_deploy import runner, vault
from lemonade_deploy.console import Display
from lemonade_deploy.errors import UsageError
from lemonade_deploy.events import Collector
from lemonade_deploy.prepare import Prepared, Request, prepare
from lemonade_deploy.results import HostRun


@dataclass(frozen=True)
class Session:
    """What came of a request."""

    hosts: list[HostRun]
    rc: int
    interrupted: bool
    local: frozenset[str]  # the hosts that are this very machine


def execute(
    request: Request, display: Display, announce: Callable[[Prepared], None] = lambda _prepared: None
) -> Session:
    """Check, announce, run. Raises UsageError before any host is touched."""
    with runner.private_folder() as private:
        prepared = prepare(request, private)
        passwords = vault.ask_passwords(request.ask_pass, request.ask_become_pass)
        announce(prepared)
        collector = Collector(prepared.hosts, display, prepared.limits)
        with display:
            display.watch(collector.hosts.values(), request.check)
            outcome = runner.play(prepared, collector, passwords, private)
        if not collector.playbook_started and outcome.rc != 0 and not outcome.interrupted:
            raise UsageError(runner.startup_error(collector.output), "No host was touched.")
        return Session(list(collector.hosts.values()), outcome.rc, outcome.interrupted, prepared.local)
