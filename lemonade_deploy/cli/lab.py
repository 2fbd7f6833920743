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

from lemonade_deploy.cli.options import GroupPage, Json, Page
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.exits import Exit
from lemonade_deploy.lab import Lab, LabError, LabUsageError
from lemonade_deploy.lab.profiles import assign
from lemonade_deploy.lab.report import SIMULATED, host_report

app = typer.Typer(no_args_is_help=True, cls=GroupPage)


@app.callback()
def _lab_page() -> None:
    """Usage: lemonade-deploy lab VERB [OPTIONS]           (needs root on this machine)

    Simulated Strix Halo hosts to try the kit on. systemd, ssh, apt, dpkg, dkms, the
    tools of GRUB and initramfs, and Lemonade Server are real; the GPU, its driver,
    the kernels and the vendors' archives are simulated, as `lab list` says.

    Verbs:
      up             bring hosts up: lab1, lab2, …
      list           what stands: profile, address, what booted, which engine
      exec HOST CMD  run a command on a host; returns its exit code
      inventory      print the path of the hosts' inventory
      reset HOST     a fresh disk; address and host key stay
      down           remove all hosts and put back what the lab changed here

    Examples:
      lemonade-deploy lab up --hosts 2 --profile lab2=strix-halo-dark
      lemonade-deploy site.yml -i $(lemonade-deploy lab inventory)
    """


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


@app.command(cls=Page)
def up(
    hosts: Annotated[int, typer.Option("--hosts", min=1, max=200)] = 1,
    profile: Annotated[list[str] | None, typer.Option("--profile", metavar="[HOST=]PROFILE")] = None,
    engine: Annotated[Engine, typer.Option("--engine")] = Engine.VLLM,
) -> None:
    """Usage: lemonade-deploy lab up [OPTIONS]

    Bring simulated hosts up until N stand; those that stand stay as they are. The
    first time makes the root and the engine's bundle (minutes), later: seconds.

      --hosts N                  lab1 to labN (default 1)
      --profile [HOST=]PROFILE   of new hosts, or of one host; repeatable:
          strix-halo-dirty   (default) amdgpu-dkms from AMD's 30.30, old kernel
          strix-halo-dark    a failed DKMS build left a blacklist: no KFD node
          strix-halo-inactive  AMD's package installed, the kernel's module runs
          strix-halo-clean   a fixed kernel, nothing of AMD's
          no-gpu             the same without an AMD GPU
      --engine vllm|light        the real vLLM on the CPU (default), or llama.cpp's
                                 server behind the same launcher: small and fast

    Exit: 0, 1 failed, 64 wrong usage (not root, a program missing).

    Examples:
      lemonade-deploy lab up
      lemonade-deploy lab up --hosts 3 --engine light --profile lab3=no-gpu
    """
    with _lab() as lab:
        names = [f"lab{number}" for number in range(1, hosts + 1)]
        existing = {host.record.name: host.record for host in lab.hosts()}
        profiles = {name: record.profile for name, record in existing.items()}
        lab.up_all(assign(names, profile or [], profiles), engine.value)
        for record in (existing[name] for name in names if name in existing):
            if record.engine != engine.value:
                said = f"{record.name} stands with the engine {record.engine} and keeps it"
                print(f"{said}; `lemonade-deploy lab down` makes room for {engine.value}", file=sys.stderr)
        _table(lab)
        print(f"Next: lemonade-deploy site.yml -i {shlex.quote(str(lab.inventory_path))}")


@app.command("list", cls=Page)
def list_hosts(json_output: Json = False) -> None:
    """Usage: lemonade-deploy lab list [--json]

    Show the hosts: profile, address, state (running, off, stuck in its boot), the
    kernel and driver that booted and why, the engine, and what is simulated.

    Examples:
      lemonade-deploy lab list
      lemonade-deploy lab list --json | jq .hosts.lab1.reason
    """
    envelope = Envelope("lab", sys.argv[1:])
    with _lab() as lab:
        if json_output:
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
    cls=Page,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def exec_command(
    host: Annotated[str, typer.Argument(metavar="HOST")],
    command: Annotated[list[str], typer.Argument(metavar="CMD")],
) -> None:
    """Usage: lemonade-deploy lab exec HOST -- CMD [ARG]...

    Run a command on a host over ssh as the user deploy (sudo needs no password).
    Exit: the command's own code; 64 where there is no such host.

    Examples:
      lemonade-deploy lab exec lab1 -- uname -r
      lemonade-deploy lab exec lab1 -- sudo journalctl -u lemond -n 20
    """
    with _lab() as lab:
        argv = lab.host(host).ssh([shlex.join(_without_dashes(command))])
        if sys.stdin.isatty():
            argv.insert(1, "-t")
        sys.stdout.flush()
        os.execvp(argv[0], argv)  # noqa: S606 -- ssh takes our place, so its code and signals are ours


def _without_dashes(command: Sequence[str]) -> list[str]:
    return list(command[1:] if command and command[0] == "--" else command)


@app.command(cls=Page)
def inventory() -> None:
    """Usage: lemonade-deploy lab inventory

    Print the path of the hosts' inventory. lemonade-deploy.lock lies beside it.

    Examples:
      lemonade-deploy lab inventory
      lemonade-deploy doctor -i $(lemonade-deploy lab inventory)
    """
    with _lab() as lab:
        if not lab.hosts():
            raise LabUsageError("no lab host is up; bring one up with `lemonade-deploy lab up`")
        print(lab.inventory_path)


@app.command(cls=Page)
def reset(host: Annotated[str, typer.Argument(metavar="HOST")]) -> None:
    """Usage: lemonade-deploy lab reset HOST

    Give a host a fresh disk of its profile and boot it. Address and host key stay.

    Examples:
      lemonade-deploy lab reset lab1
      lemonade-deploy lab reset lab2
    """
    with _lab() as lab:
        lab.reset(host)


@app.command(cls=Page)
def down(purge: Annotated[bool, typer.Option("--purge")] = False) -> None:
    """Usage: lemonade-deploy lab down [--purge]

    Remove all hosts and put back what the lab changed on this machine (network,
    sysctl). Fine where nothing is up, and after a crash.

      --purge   delete keys, inventory and everything cached, too

    Examples:
      lemonade-deploy lab down
      lemonade-deploy lab down --purge
    """
    with _lab() as lab:
        lab.down(purge=purge)
