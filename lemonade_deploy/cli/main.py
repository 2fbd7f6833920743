# SPDX-License-Identifier: Apache-2.0
"""The command ``lemonade-deploy``: verbs, the default verb, and errors without tracebacks."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated

import typer

from lemonade_deploy import __version__
from lemonade_deploy.cli import (
    bench,
    demo,
    depot_carry,
    depot_debs,
    depot_serve,
    depot_store,
    doctor,
    lab,
    rollback,
    run,
    verify,
)
from lemonade_deploy.cli.options import GroupPage
from lemonade_deploy.envelope import Envelope, write, written
from lemonade_deploy.errors import UsageError, is_of_a_path, of_system
from lemonade_deploy.exits import Exit
from lemonade_deploy.stopping import Stopped, raised

app = typer.Typer(
    cls=GroupPage,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
run.register(app)
doctor.register(app)
verify.register(app)
rollback.register(app)
bench.register(app)
demo.register(app)
app.add_typer(lab.app, name="lab")
for part in (depot_store, depot_debs, depot_serve, depot_carry):
    depot = part.app  # one group, whose verbs stand in several files
app.add_typer(depot, name="depot")

# What the parser makes of a KeyboardInterrupt.
_PARSERS_CTRL_C = 130
# Words that are no playbook although no verb of ours has them as its name.
_OWN_OPTIONS = ("-h", "--help", "--version")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lemonade-deploy {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Usage: lemonade-deploy PLAYBOOK [OPTIONS]     or: lemonade-deploy VERB [OPTIONS]

    From bare boxes with an AMD GPU to a verified OpenAI endpoint: driver, kernel,
    Lemonade Server, vLLM on ROCm. Can be run again at any time.

    Playbooks: a file, or one of the kit: site.yml does it all; --check shows what
    would change. All options: lemonade-deploy run --help

    Verbs:
      run PLAYBOOK    what a playbook alone means, too
      doctor          what stands in the way on each host; changes nothing
      verify          check the service and ask the model; changes nothing
      rollback        back to the bundle that was current before
      bench           measure how fast the models load and answer
      depot           lock bundles by sha256, fetch them once, serve them to hosts
      lab, demo       simulated hosts; one of them from dirty to an answer (root)

    Every verb: --help, --json (one document). The command: --version. Exit codes:
    0 done, 1 failed, 2 --check found changes, 3 failures within --max-failed,
    4 reboot due here, 64 wrong usage or input.

    Examples:
      lemonade-deploy site.yml -i hosts.yml --check
      lemonade-deploy demo
    """


def verbs() -> list[str]:
    """The names of all verbs."""
    return sorted(typer.main.get_group(app).commands)


def route(argv: Sequence[str]) -> list[str]:
    """Put ``run`` in front where the line does not begin with a verb: site.yml is enough."""
    if not argv or argv[0] in verbs() or argv[0] in _OWN_OPTIONS:
        return list(argv)
    return ["run", *argv]


def main(argv: Sequence[str] | None = None) -> None:
    """The console script. Ends the process with one of :class:`Exit`."""
    given = list(sys.argv[1:] if argv is None else argv)
    sys.exit(int(dispatch(given)))


def dispatch(argv: Sequence[str]) -> int:
    """Run the command line *argv*; mistakes of the user become exit 64."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # argv and file names may be no text
    words = route(argv)
    verb = words[0] if words and not words[0].startswith("-") else "run"
    # The lab's own programs and servers see to their signals themselves.
    stoppable = raised() if verb != "lab" else nullcontext()
    written.clear()
    envelope = Envelope(verb, argv)
    try:
        with stoppable:
            return _called(words, verb, envelope, argv)
    except Stopped:
        return _stopped(envelope, argv)


def _called(words: Sequence[str], verb: str, envelope: Envelope, argv: Sequence[str]) -> int:
    """The exit code of the verb in *words*."""
    try:
        if not words:
            typer.echo(typer.main.get_group(app).get_help(None), err=True)  # type: ignore[arg-type]
            return Exit.USAGE
        code = app(list(words), prog_name="lemonade-deploy", standalone_mode=False)
    except UsageError as error:
        return _usage(envelope, error, argv)
    except typer.TyperException as error:
        # The parser's own code is 2, which here means "--check found changes".
        return _usage(envelope, UsageError(error.format_message(), _help_of(verb)), argv)
    except (typer.Abort, KeyboardInterrupt):
        return _stopped(envelope, argv)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); without this Python complains at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except OSError as error:
        # A path that cannot even be looked at (another user's folder, a name too long), a full disk.
        return _usage(envelope, of_system(error), argv, Exit.USAGE if is_of_a_path(error) else Exit.FAILED)
    if code == _PARSERS_CTRL_C and list(words[:2]) != ["lab", "exec"]:
        return _stopped(envelope, argv)
    return int(code or 0)


def _stopped(envelope: Envelope, argv: Sequence[str]) -> int:
    """What a stop comes to before or after the run itself (see runner.Interrupt for that)."""
    if written:
        return written[0]  # everything was done and told
    sys.stderr.write("lemonade-deploy: stopped\n")
    if _json_wanted(argv):
        write(envelope.document(Exit.FAILED, {}, UsageError("Stopped.", "The same command starts again.")))
    return Exit.FAILED


def _json_wanted(argv: Sequence[str]) -> bool:
    # Everything after -- belongs to a command in the lab, not to us.
    return "--json" in argv[: list(argv).index("--") if "--" in argv else None]


def _help_of(verb: str) -> str:
    return f"See: lemonade-deploy {verb} --help"


def _usage(envelope: Envelope, error: UsageError, argv: Sequence[str], code: Exit = Exit.USAGE) -> int:
    sys.stderr.write(f"lemonade-deploy: {envelope.redacted(error.found)}\n")
    if error.remedy:
        sys.stderr.write(f"{envelope.redacted(error.remedy)}\n")
    if _json_wanted(argv):
        write(envelope.document(code, {}, error))
    return code
