# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy depot fetch | serve``: fill the depot's folder, serve it to the hosts."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lemonade_deploy.cli import options
from lemonade_deploy.cli.depot import app, failed, place
from lemonade_deploy.cli.transfer import Shown
from lemonade_deploy.depot import archive, fetch, lock, lockfile, pack, packages, serve, store
from lemonade_deploy.depot.archive import Content
from lemonade_deploy.domain.assets import asset_url
from lemonade_deploy.domain.bundle_fetch import WrongDigest
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.gunzip import ArchiveError
from lemonade_deploy.domain.lock import LockError, Release
from lemonade_deploy.domain.releases import split
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.errors import UsageError
from lemonade_deploy.exits import Exit

__all__ = ["app"]

Inventory = Annotated[str | None, typer.Option("-i", "--inventory", metavar="FILE")]
LockFile = Annotated[Path | None, typer.Option("--lock", metavar="FILE")]
Folder = Annotated[Path | None, typer.Option("--depot", metavar="DIR")]
ERRORS = (
    *(FetchError, WrongDigest, ArchiveError, LockError, OSError),
    *(lock.Changed, packages.Contradiction, store.WrongBytes),
)


def make_console() -> Console:
    """Standard error, for people."""
    return Console(stderr=True, soft_wrap=not sys.stderr.isatty(), highlight=False)


def wanted(path: Path, names: list[str]) -> Content:
    """What is locked: all of it, or the releases by full or base tag. Raises UsageError, LockError."""
    known, debs = lockfile.read(path), lockfile.read_packages(path)
    if not known and not debs:
        raise UsageError(f"{path} locks nothing.", "Run `lemonade-deploy depot lock RELEASE` first.")
    for name in names:
        if not any(name in (tag, split(tag)[0]) for tag in known):
            raise UsageError(f"{path} has no release {name}.", f"It has: {', '.join(known)}.")
    if not names:
        return Content(known, debs)
    return Content({tag: known[tag] for tag in known if {tag, split(tag)[0]} & set(names)}, {})


def named(content: Content) -> dict[str, Any]:
    """What is in *content*, for a document."""
    return {"releases": list(content.releases), "packages": list(content.packages)}


def told(content: Content) -> str:
    """``2 release(s), 5 package file(s)``."""
    debs = f", {len(content.packages)} package file(s)" if content.packages else ""
    return f"{len(content.releases)} release(s){debs}"


@app.command("fetch", cls=options.Page)
def fetch_command(
    releases: Annotated[list[str] | None, typer.Argument(metavar="[RELEASE...]")] = None,
    inventory: Inventory = None,
    lock_file: LockFile = None,
    depot: Folder = None,
    base_url: Annotated[str, typer.Option("--base-url", metavar="URL")] = "",
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, max=32)] = fetch.JOBS,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy depot fetch [RELEASE...] [OPTIONS]

    Bring the locked releases (all, and packages; or those named) to this machine,
    compare them with the lock, and store releases once more as zstd chunks for the
    hosts. Killed at any point it goes on where it was; what is there is compared
    too, and replaced where it is damaged or of another build.

      -i, --inventory FILE the lock file beside this inventory
      --lock FILE          the lock file itself (else: ./lemonade-deploy.lock)
      --depot DIR          folder (~/.cache/lemonade-deploy/depot)
      --base-url URL       another server in GitHub's layout URL/TAG/FILE
      --jobs N             connections at a time (4)
      --json               one document on standard output

    Exit codes: 0 all there, 1 failed or other bytes than locked, 64 wrong usage.

    Examples:
      lemonade-deploy depot fetch -i hosts.yml
      lemonade-deploy depot fetch vllm0.22.1-rocm7.13.0 --jobs 8
    """
    envelope, console = Envelope("depot", sys.argv[1:]), make_console()
    folder = depot or store.default_folder()
    try:
        content = wanted(place(inventory, lock_file), releases or [])
        with store.held(folder, "fetch"):
            store.demand(folder, archive.room_for(folder, content))
            for release in content.releases.values():
                _fetch_one(console, folder, release, base_url, jobs)
            with Shown(console, "packages") as shown:
                for package in content.packages.values():
                    packages.bring(folder, package, shown, jobs)
    except ERRORS as error:
        return failed(console, envelope, error, json_output, "fetch")
    console.print(f"{told(content)} in {folder}, {store.size_of(folder):,} bytes.", markup=False)
    if json_output:
        write(envelope.document(Exit.OK, {}, None, depot=str(folder), **named(content)))
    return Exit.OK


def _fetch_one(console: Console, folder: Path, release: Release, base_url: str, jobs: int) -> None:
    with Shown(console, release.tag) as shown:
        for asset in release.assets:
            url = asset_url(base_url, release.tag, asset.name) if base_url else asset.url
            fetch.fetch(release, asset, url, folder / release.tag, shown, jobs)
    chunked(console, folder, release)


def chunked(console: Console, folder: Path, release: Release) -> None:
    """Make a release's chunks, and show how far that is."""
    with Shown(console, release.tag) as shown:
        pack.pack(folder, release, lambda done: shown("zstd chunks", done, release.size))


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

    Exit codes: 0 stopped, 1 failed, 64 wrong usage.

    Examples:
      lemonade-deploy depot serve
      lemonade-deploy depot serve --bind 10.0.0.1 --tls-cert d.pem --tls-key d.key
    """
    envelope, console = Envelope("depot", sys.argv[1:]), make_console()
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together.")
    tls = (str(tls_cert), str(tls_key)) if tls_cert and tls_key else None
    folder = depot or store.default_folder()
    said = partial(console.print, markup=False)
    try:
        with store.explained(folder):
            token = serve.token_of(folder, said)
        server = serve.server(folder, (bind, port), token, tls, said)
    except (FetchError, OSError, OverflowError) as error:
        return failed(console, envelope, error, False, "serve")
    scheme = "https" if tls else "http"
    console.print(f"{folder} at {scheme}://{bind}:{port}; token: {folder / store.TOKEN}", markup=False)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.print("stopped")
    finally:
        server.server_close()
    return Exit.OK
