# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy bench``: how fast the models load and answer, for one stream and for many."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lemonade_deploy import playbooks
from lemonade_deploy.bench import markdown, page, reference, report
from lemonade_deploy.cli import options
from lemonade_deploy.cli.run import announce
from lemonade_deploy.console import STYLES, display_for
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.errors import UsageError
from lemonade_deploy.exits import Exit
from lemonade_deploy.prepare import Request
from lemonade_deploy.results import HostRun
from lemonade_deploy.session import execute

LEVELS = "1,2,4,8,16"
ELSEWHERE = "Name a folder that can be written."
GOES_ON = "On the host itself the burn test may go on to its end; until then it refuses another."


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("bench", cls=options.Page)(command)


def command(
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    models: Annotated[list[str] | None, typer.Option("--models", metavar="NAME,…")] = None,
    every: Annotated[bool, typer.Option("--all")] = False,
    runs: Annotated[int, typer.Option("--runs", min=1, max=1000)] = 5,
    warmup: Annotated[int, typer.Option("--warmup", min=0, max=1000)] = 2,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1)] = 200,
    concurrency: Annotated[str, typer.Option("--concurrency", metavar="N,…")] = LEVELS,
    output: Annotated[Path | None, typer.Option("--output", metavar="FOLDER")] = None,
    fresh: Annotated[bool, typer.Option("--fresh")] = False,
    forks: options.Forks = None,
    ask_pass: options.AskPass = False,
    ask_become_pass: options.AskBecomePass = False,
    vault_id: options.VaultId = None,
    vault_password_file: options.VaultFile = None,
    ask_vault_pass: options.AskVaultPass = False,
    verbose: options.Verbose = 0,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy bench [OPTIONS]

    Measure the loaded models (or --models NAME,NAME or --all downloaded ones): cold
    and warm load, time to first token, tokens/s of every run, throughput and
    latency against clients. Users notice: it unloads models, and loads the former
    ones again. Stopped, it goes on with the models left; --fresh starts all over.

      --runs 5  --warmup 2  --max-tokens 200   a single stream's requests
      --concurrency 1,2,4,8,16   clients at once; "" for none
      --output FOLDER   for bench.md, bench.json, bench.html (default: bench-TIME)
      -i, --inventory FILE|HOST,   -l, --limit PATTERN   -f, --forks N
      -k, --ask-pass   -K, --ask-become-pass   -v, --verbose
      --vault-id ID@FILE, --vault-password-file FILE, --ask-vault-pass
      --json           one document

    Exit: 0 all measured, 1 a model or a host was not, 64 wrong usage or input.

    Examples:
      lemonade-deploy bench -i hosts.yml --all
      lemonade-deploy bench --models Qwen3.5-0.8B-FP16-vLLM --concurrency 1,8
    """
    envelope = Envelope("bench", sys.argv[1:])
    wishes = {
        "bench_models": names(models or []),
        "bench_all": every,
        "bench_runs": runs,
        "bench_warmup": warmup,
        "bench_max_tokens": max_tokens,
        "bench_concurrency": levels(concurrency),
        "bench_fresh": fresh,
    }
    request = Request(
        playbook=playbooks.resolve("bench.yml"),
        inventory=tuple(inventory or ()),
        limit=limit,
        extra_vars=(json.dumps(wishes),),
        forks=forks,
        ask_pass=ask_pass,
        ask_become_pass=ask_become_pass,
        vault_ids=tuple(vault_id or ()),
        vault_password_files=tuple(vault_password_file or ()),
        ask_vault_pass=ask_vault_pass,
        verbosity=verbose,
    )
    folder = place(output, envelope)
    display = display_for(sys.stderr if json_output else sys.stdout, verbose)
    session = execute(request, display, lambda prepared: announce(display, prepared))
    code = Exit.FAILED if session.interrupted or report.failed(session.hosts) else Exit.OK
    document = envelope.document(code, {host.name: report.public(host) for host in session.hosts})
    show(display.console, session.hosts, session.interrupted)
    if json_output:
        write(document)  # before the files: a full disk must not lose it
    save(folder, session.hosts, document)
    display.console.print(Text(f"Report: {folder}/bench.html (also bench.md, bench.json)"))
    return code


def names(given: Sequence[str]) -> list[str]:
    """``--models A,B --models C`` as a list."""
    return [name.strip() for word in given for name in word.split(",") if name.strip()]


def levels(text: str) -> list[int]:
    """``1,2,4`` as ascending numbers; UsageError for anything else."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdigit() and 1 <= int(word) <= 256 for word in words):
        raise UsageError(f"--concurrency {text}: numbers of clients from 1 to 256 are wanted, e.g. {LEVELS}.")
    return sorted({int(word) for word in words})


def place(output: Path | None, envelope: Envelope) -> Path:
    """The folder of the report, made before anything is measured. Raises UsageError."""
    folder = output or Path(f"bench-{envelope.started:%Y%m%dT%H%M%SZ}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {folder}: {error.strerror}.", ELSEWHERE) from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--output {folder}: it cannot be written.", ELSEWHERE)
    return folder


def save(folder: Path, hosts: Sequence[HostRun], document: dict[str, Any]) -> None:
    """The three files. UsageError where one cannot be written."""
    texts = {
        "bench.json": json.dumps(document, indent=2, ensure_ascii=False) + "\n",  # first: it holds all
        "bench.md": markdown.render(hosts, document["started"]),
        "bench.html": page.render(hosts, document["started"]),
    }
    for name, text in texts.items():
        try:
            (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output: {folder / name}: {error.strerror}.", ELSEWHERE) from error


def show(console: Console, hosts: Sequence[HostRun], interrupted: bool = False) -> None:
    """The table, and below it what must be said. ``interrupted``: Ctrl-C ended the command, not the hosts."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("host", *(column.lower() for column in report.COLUMNS)):
        table.add_column(name)
    remarks = []
    for host in hosts:
        if host.failure:
            said = f"{host.name}: {host.failure.message.rstrip('.')}. {host.failure.remedy}".strip()
            remarks.append(f"{said} {GOES_ON}" if interrupted else said)
        for model in (host.bench or {}).get("models") or []:
            line = report.row(model)
            table.add_row(host.name, *line.cells)
            remarks += [f"{host.name}: {line.cells[0]}: {remark}" for remark in line.remarks]
    if table.row_count:
        console.print(table)
    _published(console, hosts)
    for remark in remarks:
        console.print(Text(remark, STYLES["failed"] if "fail" in remark else ""))


def _published(console: Console, hosts: Sequence[HostRun]) -> None:
    """What others have published of these checkpoints; the same for every host, our rates are above."""
    models = {model["model"]: model for host in hosts for model in (host.bench or {}).get("models") or []}
    for name, model in models.items():
        for line in reference.of(str(model["checkpoint"])):
            rate, deviation, low, high, *_rest, where = line.cells
            spread = f" ({low} to {high})" if low != "-" else ""
            told = f"{rate} ± {deviation}{spread} tok/s" if line.mean is not None else rate
            console.print(Text(f"{name}: published: {told}; {where}", "dim"))
