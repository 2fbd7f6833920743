# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy doctor``: what stands in the way on each host; changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lemonade_deploy import playbooks
from lemonade_deploy.cli import options
from lemonade_deploy.cli.run import announce
from lemonade_deploy.console import display_for
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.exits import Exit
from lemonade_deploy.prepare import Request
from lemonade_deploy.results import HostRun
from lemonade_deploy.session import execute

SEVERITIES = {"error": "bold red", "warning": "yellow", "info": "dim"}
_KEYS = ("id", "severity", "found", "remedy", "source")


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("doctor", cls=options.Page)(command)


def command(
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    extra_vars: options.ExtraVars = None,
    forks: options.Forks = None,
    ask_pass: options.AskPass = False,
    ask_become_pass: options.AskBecomePass = False,
    vault_id: options.VaultId = None,
    vault_password_file: options.VaultFile = None,
    ask_vault_pass: options.AskVaultPass = False,
    verbose: options.Verbose = 0,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy doctor [OPTIONS]

    Look at each host and say what stands in the way of vLLM on its GPU: driver,
    CWSR numbers, apt sources and keys, dpkg, kernel, firmware, disk, service user.
    Changes nothing. Each finding has an id (docs/findings.md), what was found, what
    to do, and where it was seen.

    Without -i: the inventory ./ansible.cfg or ./inventory names, else this machine.

      -i, --inventory FILE|HOST,   (repeatable)    -l, --limit PATTERN
      -e, --extra-vars K=V|@FILE                   -f, --forks N
      -k, --ask-pass   -K, --ask-become-pass       -v, --verbose
      --vault-id ID@FILE, --vault-password-file FILE, --ask-vault-pass
      --json           one document

    Exit: 0 no finding is an error, 1 one is (or a host was not reached), 64 usage.

    Examples:
      lemonade-deploy doctor
      lemonade-deploy doctor -i hosts.yml -l halo-1 --json
    """
    envelope = Envelope("doctor", sys.argv[1:])
    request = Request(
        playbook=playbooks.resolve("doctor.yml"),
        inventory=tuple(inventory or ()),
        limit=limit,
        extra_vars=tuple(extra_vars or ()),
        forks=forks,
        ask_pass=ask_pass,
        ask_become_pass=ask_become_pass,
        vault_ids=tuple(vault_id or ()),
        vault_password_files=tuple(vault_password_file or ()),
        ask_vault_pass=ask_vault_pass,
        verbosity=verbose,
    )
    display = display_for(sys.stderr if json_output else sys.stdout, verbose)
    session = execute(request, display, lambda prepared: announce(display, prepared))
    show(display.console, session.hosts)
    code = Exit.FAILED if session.interrupted or session.rc != 0 else code_of(session.hosts)
    if json_output:
        write(envelope.document(code, {host.name: public(host) for host in session.hosts}))
    return code


def code_of(hosts: Sequence[HostRun]) -> Exit:
    """0 unless a finding is an error or a host could not be looked at."""
    for host in hosts:
        if host.failure or host.unreachable or any(f.get("severity") == "error" for f in host.findings):
            return Exit.FAILED
    return Exit.OK


def public(host: HostRun) -> dict[str, Any]:
    """The JSON form of a host in doctor's document."""
    run = host.public()
    return {
        "status": host.status,
        "findings": [{key: finding.get(key, "") for key in _KEYS} for finding in _sorted(host.findings)],
        "decision": host.decision,
        "failure": run["failure"],
        "kernel": run["kernel"],
        "gpu": run["gpu"],
        "facts": host.facts,
    }


def _sorted(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    order = list(SEVERITIES)
    return sorted(findings, key=lambda f: order.index(f["severity"]) if f.get("severity") in order else 99)


def show(console: Console, hosts: Sequence[HostRun]) -> None:
    """Findings per host, errors first, each with its remedy."""
    for host in hosts:
        console.print(Text.assemble((host.name, "bold"), f": {_counts(host)}"))
        if host.failure:
            _block(console, Text("failed", "bold red"), host.failure.message, host.failure.remedy)
        for finding in _sorted(host.findings):
            severity = str(finding.get("severity"))
            source = f"  ({finding['source']})" if finding.get("source") else ""
            told = f"{finding.get('id')}: {finding.get('found')}{source}"
            _block(
                console, Text(severity, SEVERITIES.get(severity, "")), told, str(finding.get("remedy") or "")
            )
        for reason in (host.decision or {}).get("reasons") or []:
            _block(console, Text("decided", "dim"), str(reason), "")


def _counts(host: HostRun) -> str:
    """``2 errors, 1 info``."""
    if host.failure:
        return "it could not be looked at"
    numbers = {name: sum(f.get("severity") == name for f in host.findings) for name in SEVERITIES}
    told = [f"{number} {name}{'s' if number > 1 else ''}" for name, number in numbers.items() if number]
    return ", ".join(told) or "nothing stands in the way"


def _block(console: Console, label: Text, text: str, remedy: str) -> None:
    """A label and an indented text; in a pipe every text stays one line, for grep."""
    lines = [text, *([f"→ {remedy}"] if remedy else [])]
    if not console.is_terminal:
        for number, line in enumerate(lines):
            console.print(Text(f"  {label.plain if number == 0 else '':<8}{line}"))
        return
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=9)
    grid.add_column()
    for number, line in enumerate(lines):
        grid.add_row(Text("  ").append(label) if number == 0 else "", Text(line))
    console.print(grid)
