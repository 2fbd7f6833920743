# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy depot serve``: serve the depot to the hosts, and say how they use it."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lemonade_deploy.cli import options
from lemonade_deploy.cli.depot import app
from lemonade_deploy.cli.depot_input import failed, folder_of, readable
from lemonade_deploy.cli.depot_store import Folder, make_console
from lemonade_deploy.depot import reach, serve, store, tls
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.envelope import Envelope
from lemonade_deploy.errors import UsageError
from lemonade_deploy.exits import Exit
from lemonade_deploy.stopping import Stopped

__all__ = ["app"]

_BIND = "`ip -4 address` shows this machine's; 0.0.0.0 is all of them."


@app.command("serve", cls=options.Page)
def serve_command(
    depot: Folder = None,
    bind: Annotated[str, typer.Option("--bind", metavar="ADDRESS")] = "0.0.0.0",  # noqa: S104
    port: Annotated[int, typer.Option("--port", metavar="N", min=1, max=65535)] = serve.PORT,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE")] = None,
) -> int:
    """Usage: lemonade-deploy depot serve [OPTIONS]

    Serve the depot to the hosts over HTTP until Ctrl-C. They need its address and
    token: vllm_rocm_depot_url, and vllm_rocm_depot_token from a vault. The token is
    made once and stays in the file `token` of the depot.

      --depot DIR        folder (~/.cache/lemonade-deploy/depot)
      --bind ADDRESS     address to listen at (0.0.0.0: all)
      --port N           TCP port (13380)
      --tls-cert FILE, --tls-key FILE   serve HTTPS (PEM); else the bytes, which
                         hosts verify, and the token go over the LAN in clear

    Exit codes: 0 stopped (Ctrl-C, SIGTERM), 1 failed, 64 wrong usage.

    Examples:
      lemonade-deploy depot serve
      lemonade-deploy depot serve --bind 10.0.0.1 --tls-cert d.pem --tls-key d.key
    """
    envelope, console = Envelope("depot", sys.argv[1:]), make_console()
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together.")
    folder, said = folder_of(depot), partial(console.print, markup=False)
    try:
        context = None
        if tls_cert and tls_key:
            context = tls.context(readable(tls_cert, "--tls-cert"), readable(tls_key, "--tls-key"))
        with store.explained(folder):
            token = serve.token_of(folder, said)
        with _listening(bind, port):
            server = serve.server(folder, (bind, port), token, context, said)
    except (FetchError, OSError) as error:
        return failed(console, envelope, error, False, "serve")
    try:
        _tell(console, folder, bind, port, "https" if context else "http", depot is None)
        server.serve_forever()
    except (KeyboardInterrupt, Stopped):
        console.print("stopped")
    finally:
        server.server_close()
    return Exit.OK


@contextmanager
def _listening(bind: str, port: int) -> Iterator[None]:
    """Turn what the system says of an address or a port into the user's words (UsageError)."""
    try:
        yield
    except socket.gaierror as error:
        raise UsageError(f"--bind {bind}: that is no IPv4 address, and no name of one.", _BIND) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} at {bind} is in use already, perhaps by another `depot serve`.",
                f"`ss -ltnp sport = :{port}` shows by whom. Stop that, or choose another with --port.",
            ) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"--bind {bind}: this machine has no such address.", _BIND) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise UsageError(
                f"port {port}: this user may not listen there.", "Choose one from 1024 up with --port."
            ) from error
        raise


def _tell(console: Console, folder: Path, bind: str, port: int, scheme: str, by_default: bool) -> None:
    """Where it is served, and what to set on the hosts; that there is nothing yet.

    *by_default*: whether the folder was not named.
    """
    say = partial(console.print, markup=False)
    first, *others = reach.addresses(bind)
    say(f"{folder} at {scheme}://{first}:{port}; token: {folder / store.TOKEN}")
    if others:
        say(f"This machine's other addresses: {', '.join(others)}.")
    if reach.is_loopback(first):
        say("Only this machine reaches that address; --bind 0.0.0.0 serves all machines around.")
    say(
        "Hosts use it with these variables in the inventory (the token from a vault):\n"
        f"  vllm_rocm_depot_url: {scheme}://{first}:{port}\n"
        f'  vllm_rocm_depot_token: "{{{{ vault_depot_token }}}}"'
    )
    if not store.holds_something(folder):
        here = "" if by_default else f" --depot {folder}"
        say(
            f"The depot holds nothing yet: run `lemonade-deploy depot fetch -i INVENTORY{here}` (or `depot "
            f"import FILE{here}`) in another terminal. What comes is served at once."
        )
