# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy rollback --bundle``: the previous bundle, from the hosts' own disks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from lemonade_deploy import playbooks, table
from lemonade_deploy.cli import options
from lemonade_deploy.cli.run import announce, budget, code_of
from lemonade_deploy.console import display_for
from lemonade_deploy.domain.releases import split
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.errors import UsageError
from lemonade_deploy.prepare import Request
from lemonade_deploy.results import HostRun
from lemonade_deploy.session import execute


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("rollback", cls=options.Page)(command)


def command(
    bundle: Annotated[bool, typer.Option("--bundle")] = False,
    to: Annotated[str | None, typer.Option("--to", metavar="TAG")] = None,
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    check: Annotated[bool, typer.Option("-C", "--check")] = False,
    forks: options.Forks = None,
    ask_pass: options.AskPass = False,
    ask_become_pass: options.AskBecomePass = False,
    vault_id: options.VaultId = None,
    vault_password_file: options.VaultFile = None,
    ask_vault_pass: options.AskVaultPass = False,
    max_failed: Annotated[str, typer.Option("--max-failed", metavar="N|N%")] = "0",
    verbose: options.Verbose = 0,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy rollback --bundle [OPTIONS]

    Make the vLLM bundle that was current before the current one again and restart
    Lemonade Server: seconds, nothing is fetched. Called again it changes nothing.

      --bundle         roll the vLLM bundle back (must be said)
      --to TAG         this bundle of those on the host, not the previous one
      -i, --inventory FILE|HOST,   (repeatable)    -l, --limit PATTERN
      -C, --check      show what would change (exit 2), change nothing
      --max-failed N|N%  hosts that may fail (have no previous bundle): exit 3
      -f, --forks N    -v, --verbose    -k, --ask-pass    -K, --ask-become-pass
      --vault-id ID@FILE, --vault-password-file FILE, --ask-vault-pass
      --json           one document

    Exit: 0 done, 1 failed (no previous bundle), 2 --check found changes,
    3 failures within --max-failed, 64 wrong usage.

    Examples:
      lemonade-deploy rollback --bundle -i hosts.yml -l halo-1
      lemonade-deploy rollback --bundle --to vllm0.22.1-rocm7.13.0-gfx1151
    """
    if not bundle:
        raise UsageError(
            "rollback: say what is to go back.", "Known: --bundle (see lemonade-deploy rollback --help)."
        )
    if to is not None and not to.strip():
        raise UsageError("--to: it names no bundle.", "Without --to it is the previous one.")
    budget(max_failed, 1)
    envelope = Envelope("rollback", sys.argv[1:])
    request = Request(
        playbook=playbooks.resolve("rollback.yml"),
        inventory=tuple(inventory or ()),
        limit=limit,
        extra_vars=(json.dumps({"rollback_to": to}),) if to else (),
        check=check,
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
    code = code_of(session, check, budget(max_failed, len(session.hosts)))
    table.show(display.console, session.hosts, check, diff=False)
    _advice(display.console, session.hosts)
    if json_output:
        write(envelope.document(code, {host.name: host.public() for host in session.hosts}))
    return code


def _advice(console: Console, hosts: Sequence[HostRun]) -> None:
    """What keeps the hosts there: the next run of site.yml decides by the inventory."""
    bases = sorted({split(str(host.bundle["tag"]))[0] for host in hosts if host.bundle})
    if bases:
        console.print(Text(f"site.yml stays there with vllm_rocm_release: {' or '.join(bases)}"))
