# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy PLAYBOOK``: run a playbook on hosts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from lemonade_deploy import playbooks, resume, table
from lemonade_deploy.cli import options
from lemonade_deploy.console import Display, display_for
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.errors import UsageError
from lemonade_deploy.exits import Exit
from lemonade_deploy.prepare import Prepared, Request
from lemonade_deploy.results import exit_code, parse_budget
from lemonade_deploy.session import Session, execute


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("run", cls=options.Page)(command)


def command(
    playbook: Annotated[str, typer.Argument(metavar="PLAYBOOK")],
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    extra_vars: options.ExtraVars = None,
    tags: Annotated[list[str] | None, typer.Option("-t", "--tags", metavar="TAGS")] = None,
    skip_tags: Annotated[list[str] | None, typer.Option("--skip-tags", metavar="TAGS")] = None,
    check: Annotated[bool, typer.Option("-C", "--check")] = False,
    diff: Annotated[bool, typer.Option("-D", "--diff")] = False,
    forks: options.Forks = None,
    ask_pass: options.AskPass = False,
    ask_become_pass: options.AskBecomePass = False,
    vault_id: options.VaultId = None,
    vault_password_file: options.VaultFile = None,
    ask_vault_pass: options.AskVaultPass = False,
    max_failed: Annotated[str, typer.Option("--max-failed", metavar="N|N%")] = "0",
    reboot: Annotated[bool, typer.Option("--reboot")] = False,
    verbose: options.Verbose = 0,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy PLAYBOOK [OPTIONS]       (a file, or site.yml of the kit)

    Without -i: the inventory ./ansible.cfg or ./inventory names, else this machine.

      -i FILE|HOST,    inventory (repeatable)       -l PATTERN    only these hosts
      -e K=V|@FILE     variables; secrets: @FILE    -f N          hosts at a time
      -t, --tags TAGS  only these layers            --skip-tags TAGS
      -C, --check      show what would change (exit 2), change nothing
      -D, --diff       show how files change
      --max-failed N|N%  hosts that may fail: exit 3 instead of 1
      --reboot         on this machine: reboot when due, and go on after it
      -k, -K           ask for the SSH password (--ask-pass), for sudo's
                       (--ask-become-pass)
      --vault-id ID@FILE, --vault-password-file FILE, --ask-vault-pass
      -v               more (repeatable)            --json        one document
    Long forms: --inventory --limit --extra-vars --forks --verbose

    Exit: 0 done, 1 failed, 2 --check found changes, 3 failures within --max-failed,
    4 stopped at a reboot of this machine, 64 wrong usage or input.

    Examples:
      lemonade-deploy site.yml -i hosts.yml --check --diff
      lemonade-deploy site.yml -i hosts.yml -l halo-1 -t vllm_rocm,lemonade_server
    """
    argv = sys.argv[1:]
    envelope = Envelope("run", argv)
    request = Request(
        playbook=playbooks.resolve(playbook, _verbs()),
        inventory=tuple(inventory or ()),
        limit=limit,
        extra_vars=tuple(extra_vars or ()),
        tags=tuple(tags or ()),
        skip_tags=tuple(skip_tags or ()),
        check=check,
        diff=diff,
        forks=forks,
        ask_pass=ask_pass,
        ask_become_pass=ask_become_pass,
        vault_ids=tuple(vault_id or ()),
        vault_password_files=tuple(vault_password_file or ()),
        ask_vault_pass=ask_vault_pass,
        verbosity=verbose,
    )
    budget(max_failed, 1)
    if reboot:
        resume.check(ask_pass or ask_become_pass or ask_vault_pass)
    display = display_for(sys.stderr if json_output else sys.stdout, verbose)
    session = execute(request, display, lambda prepared: announce(display, prepared))
    code = code_of(session, check, budget(max_failed, len(session.hosts)))
    table.show(display.console, session.hosts, check, diff)
    _closing(display, session, code, reboot=reboot, check=check)
    if json_output:
        write(envelope.document(code, {host.name: host.public() for host in session.hosts}))
    if code == Exit.REBOOT and reboot and _due(session) <= session.local:
        resume.reboot(argv, Path.cwd())
    return code


def _verbs() -> Sequence[str]:
    from lemonade_deploy.cli.main import verbs

    return verbs()


def budget(text: str, hosts: int) -> int:
    """--max-failed as a number of hosts."""
    try:
        return parse_budget(text, hosts)
    except ValueError as error:
        raise UsageError(
            f"--max-failed {text}: a number of hosts or a percentage is wanted, e.g. 2 or 10%."
        ) from error


def announce(display: Display, prepared: Prepared) -> None:
    """The first line: which playbook, on which hosts, and why those."""
    request = prepared.request
    hosts = prepared.hosts
    names = ", ".join(hosts[:4]) + (f" … ({len(hosts)} hosts)" if len(hosts) > 4 else "")
    what = f"{request.playbook.name}{' --check' if request.check else ''}"
    display.console.print(Text(f"{what} on {names}: inventory {prepared.selection.said}"))


def code_of(session: Session, check: bool, failures_allowed: int) -> Exit:
    """The exit code; a run that was stopped, or that Ansible gave up, has failed."""
    code = exit_code(session.hosts, check, failures_allowed)
    if session.interrupted or (session.rc != 0 and code in (Exit.OK, Exit.CHANGES)):
        return Exit.FAILED
    return code


def _due(session: Session) -> set[str]:
    """The hosts at which a reboot is due."""
    return {host.name for host in session.hosts if host.status == "reboot-required"}


def _closing(display: Display, session: Session, code: Exit, *, reboot: bool, check: bool) -> None:
    say = display.console.print
    if session.interrupted:
        say(Text("Stopped. The same command goes on from here: what is done is not done again.", "bold"))
    elif code == Exit.REBOOT and not _due(session) <= session.local:
        names = ", ".join(sorted(_due(session)))
        say(Text(f"Reboot {names}, then run the same command again: it goes on from there.", "bold"))
    elif code == Exit.REBOOT and reboot:
        say(Text("Rebooting this machine. It goes on by itself after that, seen by:", "bold"))
        say(Text(f"  journalctl -f -u {resume.UNIT}"))
    elif code == Exit.REBOOT:
        say(Text("Reboot this machine, then run the same command again: it goes on from there.", "bold"))
        say(Text("(With --reboot it reboots and goes on by itself.)"))
    elif code == Exit.CHANGES:
        say(Text("Nothing was changed. Without --check the run makes these changes."))
    elif all(host.status == "ok" and not host.inference for host in session.hosts):
        # (A model's answer stays the last line.)
        say(Text("Nothing would change." if check else "Nothing had to be changed."))
