# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy demo``: a simulated box from dirty to a model's answer."""

from __future__ import annotations

import os
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from lemonade_deploy import playbooks, table
from lemonade_deploy.cli import doctor, options
from lemonade_deploy.cli.run import announce, code_of
from lemonade_deploy.console import Display, display_for
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.errors import UsageError
from lemonade_deploy.exits import Exit
from lemonade_deploy.lab import Lab, LabError, LabUsageError
from lemonade_deploy.lab.profiles import DEFAULT_PROFILE
from lemonade_deploy.lab.report import SIMULATED, host_report
from lemonade_deploy.lab.say import say
from lemonade_deploy.prepare import Request
from lemonade_deploy.session import Session, execute

HOST = "lab1"  # the first host of `lab up`, so that both show the same box


class Engine(StrEnum):
    """What answers in the lab."""

    VLLM = "vllm"
    LIGHT = "light"


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("demo", cls=options.Page)(command)


def command(
    engine: Annotated[Engine, typer.Option("--engine")] = Engine.VLLM,
    verbose: options.Verbose = 0,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy demo [OPTIONS]         (needs root: it boots a container)

    Bring up one simulated Strix Halo host with the usual trouble (amdgpu-dkms from
    AMD's 30.30 repository, an old kernel, no CWSR fix), show what doctor finds, run
    site.yml on it, and end with the table and the model's answer.

    The GPU, its driver and the kernels are simulated; systemd, apt, dpkg, lemond,
    the engine (on the CPU) and the model are real. Again: nothing is left to do.

      --engine vllm|light   the real vLLM (default), or llama.cpp's server: faster
      -v, --verbose         more
      --json                one document, the same as a run's

    Exit: 0 the model answered, 1 failed, 64 wrong usage (not root, too).

    Examples:
      lemonade-deploy demo
      lemonade-deploy demo --engine light --json
    """
    envelope = Envelope("demo", sys.argv[1:])
    if os.geteuid() != 0:
        raise UsageError(
            "the demo needs root: it boots a simulated host (systemd-nspawn).", "sudo lemonade-deploy demo"
        )
    stream = sys.stderr if json_output else sys.stdout
    display = display_for(stream, verbose)
    inventory, engine_used = _raise(engine)
    _before(display_for(stream, verbose), inventory)
    session = execute(
        _request("site.yml", inventory, verbose), display, lambda prepared: announce(display, prepared)
    )
    code = code_of(session, check=False, failures_allowed=0)
    table.show(display.console, session.hosts, check=False, diff=False)
    _after(display, session, code, inventory, engine_used)
    if json_output:
        hosts = {host.name: host.public() for host in session.hosts}
        write(envelope.document(code, hosts, engine=engine_used, simulated=list(SIMULATED)))
    return code


def as_invoked() -> str:
    """The command as the user can type it: its bare name only where that is on the PATH."""
    return "lemonade-deploy" if shutil.which("lemonade-deploy") else sys.argv[0]


def _request(playbook: str, inventory: Path, verbosity: int = 0) -> Request:
    return Request(
        playbook=playbooks.resolve(playbook), inventory=(str(inventory),), limit=HOST, verbosity=verbosity
    )


def _raise(engine: Engine) -> tuple[Path, str]:
    """Bring the host up; the inventory, and the engine that this host really has."""
    try:
        lab = Lab.open()
        lab.up([HOST], DEFAULT_PROFILE, engine.value)
        record = lab.host(HOST).record
        if record.engine != engine.value:
            say(f"{HOST} stands with the engine {record.engine}; `lab down` makes room for {engine.value}")
        report = host_report(lab.host(HOST))
        return lab.inventory_path, str(report["engine_version"] or report["engine"])
    except LabUsageError as error:
        raise UsageError(f"demo: {error}") from error
    except LabError as error:
        sys.stderr.write(f"lemonade-deploy demo: {error}\n")
        raise typer.Exit(Exit.FAILED) from error


def _before(display: Display, inventory: Path) -> None:
    """What doctor finds on the host as it is."""
    display.console.print(Text("Before: what doctor finds", "bold"))
    session = execute(_request("doctor.yml", inventory), display)
    doctor.show(display.console, session.hosts)
    display.console.print(Text("\nNow the run", "bold"))


def _after(display: Display, session: Session, code: Exit, inventory: Path, engine: str) -> None:
    tell = display.console.print
    if session.interrupted:
        tell(Text("Stopped. `lemonade-deploy demo` goes on from here.", "bold"))
        return
    if any(host.inference for host in session.hosts):
        tell(Text(f"\nThe answer came from {engine} in AMD's layout.", "dim"))
    tell(Text(f"Simulated: {'; '.join(SIMULATED)}.", "dim"))
    if code != Exit.OK:
        return
    tell(Text("Try next:", "bold"))
    me = as_invoked()
    for line in (
        f"{me} demo                                   again: nothing to do",
        f"{me} doctor -i {inventory}",
        f"{me} verify -i {inventory}",
        f"{me} site.yml -i {inventory} --check \\",
        "    -e amdgpu_driver_policy=dkms -e amdgpu_driver_repo_version=31.30",
        f"{me} lab down",
    ):
        tell(Text(f"  {line}"))
