# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy verify``: ask the served model and check the service; changes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lemonade_deploy import playbooks, vault
from lemonade_deploy.cli import options
from lemonade_deploy.console import STYLES, clock, console_for
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.errors import UsageError
from lemonade_deploy.exits import Exit
from lemonade_deploy.prepare import Request, prepare
from lemonade_deploy.runner import private_folder
from lemonade_deploy.verify import fleet, junit
from lemonade_deploy.verify.progress import Progress
from lemonade_deploy.verify.verdict import REMEDY_ABSENT, Verdict


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("verify", cls=options.Page)(command)


def command(
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    disruptive: Annotated[bool, typer.Option("--disruptive")] = False,
    junit_file: Annotated[Path | None, typer.Option("--junit", metavar="FILE")] = None,
    forks: options.Forks = None,
    ask_pass: options.AskPass = False,
    ask_become_pass: options.AskBecomePass = False,
    vault_id: options.VaultId = None,
    vault_password_file: options.VaultFile = None,
    ask_vault_pass: options.AskVaultPass = False,
    verbose: options.Verbose = 0,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy verify [OPTIONS]

    Ask the model on each host through Lemonade Server, plain and streamed; check
    the service: unit, user and groups, ports, settings in effect, the engine's
    process, CWSR numbers, kernel log. Changes nothing and disturbs nobody; a model
    that is not loaded is loaded, as by any request.

      --disruptive     restart the service, then reboot, and ask again after each

    Without -i: the inventory ./ansible.cfg or ./inventory names, else this machine.

      -i, --inventory FILE|HOST,   (repeatable)    -l, --limit PATTERN
      -f, --forks N    hosts at a time             -v   each test as it ends
      -k, --ask-pass   -K, --ask-become-pass
      --vault-id ID@FILE, --vault-password-file FILE, --ask-vault-pass
      --junit FILE     results for a CI            --json   one document

    Exit: 0 all tests passed, 1 one did not (or a host was not reached), 64 usage.

    Examples:
      lemonade-deploy verify -i hosts.yml
      lemonade-deploy verify -i hosts.yml -l halo-1 --junit verify.xml
    """
    envelope = Envelope("verify", sys.argv[1:])
    check_junit(junit_file)
    request = Request(
        playbook=playbooks.resolve("site.yml"),
        inventory=tuple(inventory or ()),
        limit=limit,
        forks=forks,
        vault_ids=tuple(vault_id or ()),
        vault_password_files=tuple(vault_password_file or ()),
        ask_vault_pass=ask_vault_pass,
    )
    console = console_for(sys.stderr if json_output else sys.stdout)
    verdicts = execute(request, console, ask_pass, ask_become_pass, bool(verbose), disruptive)
    show(console, verdicts)
    if junit_file is not None:
        write_junit(junit_file, verdicts)
    code = Exit.OK if all(verdict.status == "ok" for verdict in verdicts) else Exit.FAILED
    if json_output:
        write(envelope.document(code, {verdict.host: verdict.public() for verdict in verdicts}))
    return code


def execute(
    request: Request,
    console: Console,
    ask_pass: bool,
    ask_become_pass: bool,
    every: bool,
    disruptive: bool = False,
) -> list[Verdict]:
    """Check the request, then run the suite. Raises UsageError before any host is touched."""
    with private_folder() as private:
        prepared = prepare(request, private)
        ssh = vault.ask("SSH password: ") if ask_pass else None
        become = vault.ask("BECOME password: ") if ask_become_pass else None
        console.print(Text(f"verify: {len(prepared.hosts)} host(s) of {prepared.selection.said}"))
        reach = fleet.access(prepared, private, ssh, become)
        with Progress(console, every) as progress:
            return fleet.run(prepared.hosts, reach, request.folder, prepared.forks, progress, disruptive)


def check_junit(path: Path | None) -> None:
    """UsageError for a file that could not be written at the end: minutes later it would be too late."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise UsageError(f"--junit {path}: the folder {path.parent} is not there.", "Make it first.")
    if path.is_dir():
        raise UsageError(f"--junit {path} is a folder.", "Name a file that can be written.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--junit {path}: it cannot be written.", "Name a file that can be written.")


def write_junit(path: Path, verdicts: Sequence[Verdict]) -> None:
    """The JUnit file; a place that cannot be written is wrong input."""
    try:
        junit.write(path, verdicts)
    except OSError as error:
        raise UsageError(f"--junit {path}: {error.strerror}.", "Name a file that can be written.") from error


def show(console: Console, verdicts: Sequence[Verdict]) -> None:
    """The table, then every failure with its words and evidence."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    counts = ("tests", "passed", "failed", "skipped")  # the first is the sum of the others
    for name in ("host", "status", *counts, "model", "tok/s", "time"):
        table.add_column(name, justify="right" if name in (*counts, "tok/s", "time") else "left")
    for verdict in verdicts:
        inference = verdict.inference or {}
        table.add_row(
            verdict.host,
            Text(verdict.status, STYLES[verdict.status]),
            str(len(verdict.tests)),
            str(sum(test.outcome == "passed" for test in verdict.tests)),
            str(sum(test.bad for test in verdict.tests)),
            str(sum(test.outcome == "skipped" for test in verdict.tests)),
            str(inference.get("model") or "-"),
            str(inference.get("tokens_per_second") or "-"),
            clock(verdict.seconds),
        )
    console.print(table)
    for verdict in verdicts:
        _failures(console, verdict)


def _failures(console: Console, verdict: Verdict) -> None:
    if verdict.unreachable:
        console.print(Text(f"{verdict.host}: unreachable: {verdict.unreachable}", STYLES["failed"]))
    if verdict.absent:
        console.print(Text(f"{verdict.host}: {verdict.absent} {REMEDY_ABSENT}", STYLES["failed"]))
    for test in verdict.tests:
        if test.outcome == "skipped" and not test.warning:
            console.print(Text(f"{verdict.host}: {test.name}: skipped: {test.message}", STYLES["changed"]))
        if test.warning:
            console.print(Text(f"{verdict.host}: {test.name}: {test.warning}", STYLES["changed"]))
    for message in dict.fromkeys(test.message for test in verdict.tests if test.bad):
        names = [test.name for test in verdict.tests if test.bad and test.message == message]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        console.print(Text(f"{verdict.host}: {names[0]}{more}", STYLES["failed"]))
        console.print(Text("  " + message.replace("\n", "\n  ")))
    evidence = next((test.evidence for test in verdict.tests if test.bad and test.evidence), "")
    if evidence:
        console.print(Text("  " + evidence.strip().replace("\n", "\n  "), "dim"))
