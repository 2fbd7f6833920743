# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy depot fetch | serve | gc | export | import``: the depot's folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lemonade_deploy.cli import options
from lemonade_deploy.cli.depot import app, failed, place
from lemonade_deploy.cli.transfer import Shown
from lemonade_deploy.depot import archive, fetch, lock, lockfile, pack, serve, store
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
_ERRORS = (FetchError, WrongDigest, ArchiveError, LockError, lock.Changed, OSError)


def _console() -> Console:
    return Console(stderr=True, soft_wrap=not sys.stderr.isatty(), highlight=False)


def _wanted(path: Path, names: list[str]) -> dict[str, Release]:
    """Releases of the lock file by full or base tag; all without names. Raises UsageError, LockError."""
    known = lockfile.read(path)
    if not known:
        raise UsageError(f"{path} locks no release.", "Run `lemonade-deploy depot lock RELEASE` first.")
    for name in names:
        if not any(name in (tag, split(tag)[0]) for tag in known):
            raise UsageError(f"{path} has no release {name}.", f"It has: {', '.join(known)}.")
    return {tag: release for tag, release in known.items() if not names or {tag, split(tag)[0]} & set(names)}


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

    Bring the locked releases (all, or those named) to this machine, compare them
    with the lock, and store them once more as zstd chunks for the hosts. Killed at
    any point it goes on where it was; what is there is not fetched again.

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
    envelope, console = Envelope("depot", sys.argv[1:]), _console()
    folder = depot or store.default_folder()
    try:
        wanted = _wanted(place(inventory, lock_file), releases or [])
        for release in wanted.values():
            _fetch_one(console, folder, release, base_url, jobs)
    except _ERRORS as error:
        return failed(console, envelope, error, json_output, "fetch")
    console.print(f"{len(wanted)} release(s) in {folder}, {store.size_of(folder):,} bytes.", markup=False)
    if json_output:
        write(envelope.document(Exit.OK, {}, depot=str(folder), releases=list(wanted)))
    return Exit.OK


def _fetch_one(console: Console, folder: Path, release: Release, base_url: str, jobs: int) -> None:
    with Shown(console, release.tag) as shown:
        for asset in release.assets:
            url = asset_url(base_url, release.tag, asset.name) if base_url else asset.url
            fetch.fetch(release, asset, url, folder / release.tag, shown, jobs)
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
    envelope, console = Envelope("depot", sys.argv[1:]), _console()
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together.")
    tls = (str(tls_cert), str(tls_key)) if tls_cert and tls_key else None
    folder = depot or store.default_folder()
    try:
        token = serve.token_of(folder)
        server = serve.server(
            folder, (bind, port), token, tls, lambda line: console.print(line, markup=False)
        )
    except OSError as error:
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


@app.command("gc", cls=options.Page)
def gc_command(
    inventory: Inventory = None,
    lock_file: LockFile = None,
    depot: Folder = None,
    check: Annotated[bool, typer.Option("-C", "--check")] = False,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy depot gc [OPTIONS]

    Remove what the lock file does not name from the depot; say how much it freed.

      -i, --inventory FILE the lock file beside this inventory
      --lock FILE          the lock file itself (else: ./lemonade-deploy.lock)
      --depot DIR          folder (~/.cache/lemonade-deploy/depot)
      -C, --check          only say what would go (exit 2)
      --json               one document on standard output

    Exit codes: 0 done, 1 failed, 2 --check found something, 64 wrong usage.

    Examples:
      lemonade-deploy depot gc -i hosts.yml --check
      lemonade-deploy depot gc -i hosts.yml
    """
    envelope, console = Envelope("depot", sys.argv[1:]), _console()
    try:
        keep = _wanted(place(inventory, lock_file), [])
        gone = store.collect(depot or store.default_folder(), keep.values(), check)
    except _ERRORS as error:
        return failed(console, envelope, error, json_output, "gc")
    for name, size in gone:
        console.print(f"{name}: {size:,} bytes", markup=False)
    freed = sum(size for _name, size in gone)
    console.print(f"{'Would free' if check else 'Freed'} {freed:,} bytes.", markup=False)
    code = Exit.CHANGES if check and gone else Exit.OK
    if json_output:
        write(envelope.document(code, {}, removed=[name for name, _size in gone], freed_bytes=freed))
    return code


@app.command("export", cls=options.Page)
def export_command(
    target: Annotated[Path, typer.Argument(metavar="FILE")],
    inventory: Inventory = None,
    lock_file: LockFile = None,
    depot: Folder = None,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy depot export FILE [OPTIONS]

    Write the locked releases and the lock into one tar file, for a controller
    without a network. `depot fetch` must have brought them.

      -i, --inventory FILE the lock file beside this inventory
      --lock FILE          the lock file itself (else: ./lemonade-deploy.lock)
      --depot DIR          folder (~/.cache/lemonade-deploy/depot)
      --json               one document on standard output

    Exit codes: 0 written, 1 failed, 64 wrong usage.

    Examples:
      lemonade-deploy depot export bundles.tar -i hosts.yml
      lemonade-deploy depot import bundles.tar -i hosts.yml
    """
    envelope, console = Envelope("depot", sys.argv[1:]), _console()
    folder = depot or store.default_folder()
    try:
        wanted = _wanted(place(inventory, lock_file), [])
        lacking = archive.missing(folder, wanted)
        if lacking:
            raise FetchError(f"{folder} lacks {', '.join(lacking)}.", "Run `lemonade-deploy depot fetch`.")
        size = archive.export(folder, wanted, target)
    except _ERRORS as error:
        return failed(console, envelope, error, json_output, "export")
    console.print(f"{target}: {len(wanted)} release(s), {size:,} bytes.", markup=False)
    if json_output:
        write(envelope.document(Exit.OK, {}, file=str(target), bytes=size, releases=list(wanted)))
    return Exit.OK


@app.command("import", cls=options.Page)
def import_command(
    source: Annotated[Path, typer.Argument(metavar="FILE")],
    inventory: Inventory = None,
    lock_file: LockFile = None,
    depot: Folder = None,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy depot import FILE [OPTIONS]

    Put the releases of an exported file into the depot, compared with the lock in
    it, and add them to the lock file. A release that is locked already with other
    bytes is an error that shows both.

      -i, --inventory FILE the lock file beside this inventory
      --lock FILE          the lock file itself (else: ./lemonade-deploy.lock)
      --depot DIR          folder (~/.cache/lemonade-deploy/depot)
      --json               one document on standard output

    Exit codes: 0 done, 1 failed or other bytes than locked, 64 wrong usage.

    Examples:
      lemonade-deploy depot import bundles.tar -i hosts.yml
      lemonade-deploy depot import /media/stick/bundles.tar --depot /srv/depot
    """
    envelope, console = Envelope("depot", sys.argv[1:]), _console()
    folder, path = depot or store.default_folder(), place(inventory, lock_file)
    try:
        found, locked = archive.bring_in(source, folder, lockfile.read(path))
        for release in found.values():
            pack.pack(folder, release)
        lockfile.write(path, locked)
    except _ERRORS as error:
        return failed(console, envelope, error, json_output, "import")
    console.print(f"{', '.join(found)}: in {folder}, locked in {path}.", markup=False)
    if json_output:
        write(envelope.document(Exit.OK, {}, depot=str(folder), releases=list(found)))
    return Exit.OK
