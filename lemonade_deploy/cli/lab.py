# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy lab``: the simulated hosts, from the command line."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.exits import Exit
from lemonade_deploy.lab import Lab, LabError, LabUsageError
from lemonade_deploy.lab.profiles import DEFAULT_PROFILE, assign
from lemonade_deploy.lab.report import SIMULATED, host_report

app = typer.Typer(
    no_args_is_help=True,
    help="Simulated hosts to try the kit on: real systemd, ssh, apt and dpkg, a pretended AMD GPU.",
    epilog="Examples:  lemonade-deploy lab up --hosts 2   ·   lemonade-deploy lab exec lab1 -- uname -r",
)

EPILOG_UP = (
    "Examples:  lab up --hosts 2 --profile strix-halo-dark   ·   lab up --hosts 2 --profile lab2=no-gpu"
)


class Engine(StrEnum):
    """What answers prompts in the lab."""

    VLLM = "vllm"  # the real vLLM on the CPU
    LIGHT = "light"  # llama.cpp's server behind the same launcher


@contextmanager
def _lab() -> Iterator[Lab]:
    """The lab; its errors end the command with one line and the right code."""
    try:
        yield Lab.open()
    except LabUsageError as error:
        print(f"lemonade-deploy lab: {error}", file=sys.stderr)
        raise typer.Exit(Exit.USAGE) from None
    except LabError as error:
        print(f"lemonade-deploy lab: {error}", file=sys.stderr)
        raise typer.Exit(Exit.FAILED) from None


def _table(lab: Lab) -> None:
    for host in lab.hosts():
        report = host_report(host)
        engine = report["engine_version"] or report["engine"]
        print(
            f"{host.record.name:8} {report['address']:13} {report['profile']:18} {report['state']:8}"
            f" kernel {report['kernel'] or '-'}, driver {report['driver']}, engine {engine}"
        )
    print(f"Simulated: {'; '.join(SIMULATED)}.")


@app.command(epilog=EPILOG_UP)
def up(
    hosts: Annotated[int, typer.Option(min=1, max=200, help="How many hosts shall stand in all.")] = 1,
    profile: Annotated[
        list[str] | None,
        typer.Option(help=f"Profile of new hosts (default {DEFAULT_PROFILE}), or HOST=PROFILE; repeatable."),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="vllm: the real vLLM on the CPU; light: llama.cpp's server.")
    ] = Engine.VLLM,
) -> None:
    """Bring simulated hosts up (lab1, lab2, …) and keep those that stand."""
    with _lab() as lab:
        names = [f"lab{number}" for number in range(1, hosts + 1)]
        existing = {host.record.name: host.record.profile for host in lab.hosts()}
        lab.up_all(assign(names, profile or [], existing), engine.value)
        _table(lab)
        print(f"Next: lemonade-deploy site.yml -i {shlex.quote(str(lab.inventory_path))}")


@app.command("list", epilog="Examples:  lab list   ·   lab list --json")
def list_hosts(as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False) -> None:
    """Show the hosts: profile, address, what booted, which engine, and what is simulated."""
    envelope = Envelope("lab", sys.argv[1:])
    with _lab() as lab:
        if as_json:
            reports = {host.record.name: host_report(host) for host in lab.hosts()}
            write(
                envelope.document(
                    Exit.OK, reports, inventory=str(lab.inventory_path), simulated=list(SIMULATED)
                )
            )
        elif lab.hosts():
            _table(lab)
        else:
            print("No lab host is up; `lemonade-deploy lab up` brings one up.")


@app.command(
    "exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Examples:  lab exec lab1 -- uname -r   ·   lab exec lab1 -- sudo lspci -nn",
)
def exec_command(
    host: Annotated[str, typer.Argument(help="Name of the host.")],
    command: Annotated[list[str], typer.Argument(help="Program and arguments, after --.")],
) -> None:
    """Run a command on a host as the user deploy (sudo needs no password); returns its exit code."""
    with _lab() as lab:
        argv = lab.host(host).ssh([shlex.join(_without_dashes(command))])
        if sys.stdin.isatty():
            argv.insert(1, "-t")
        sys.stdout.flush()
        os.execvp(argv[0], argv)  # noqa: S606 -- ssh takes our place, so its code and signals are ours


def _without_dashes(command: Sequence[str]) -> list[str]:
    return list(command[1:] if command and command[0] == "--" else command)


@app.command(epilog="Examples:  lab inventory   ·   ansible all -i $(lemonade-deploy lab inventory) -m ping")
def inventory() -> None:
    """Print the path of the hosts' inventory."""
    with _lab() as lab:
        if not lab.hosts():
            raise LabUsageError("no lab host is up; bring one up with `lemonade-deploy lab up`")
        print(lab.inventory_path)


@app.command(epilog="Examples:  lab reset lab1   ·   lab reset lab2")
def reset(host: Annotated[str, typer.Argument(help="Name of the host.")]) -> None:
    """Give a host a fresh disk of its profile and boot it; address and host key stay."""
    with _lab() as lab:
        lab.reset(host)


@app.command(epilog="Examples:  lab down   ·   lab down --purge")
def down(
    purge: Annotated[bool, typer.Option(help="Delete keys, inventory and everything cached, too.")] = False,
) -> None:
    """Remove all hosts and put back what the lab changed on this machine."""
    with _lab() as lab:
        lab.down(purge=purge)
