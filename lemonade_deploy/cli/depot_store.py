# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy depot fetch``: fill the depot's folder; and what the other verbs share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lemonade_deploy.cli import options
from lemonade_deploy.cli.depot import app
from lemonade_deploy.cli.depot_input import failed, folder_of, place
from lemonade_deploy.cli.depot_input import named as named_folder
from lemonade_deploy.cli.transfer import Shown
from lemonade_deploy.depot import archive, fetch, lock, lockfile, pack, packages, store
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
Folder = Annotated[Path | None, typer.Option("--depot", metavar="DIR", parser=named_folder)]
ERRORS = (
    *(FetchError, WrongDigest, ArchiveError, LockError, OSError),
    *(lock.Changed, packages.Contradiction, store.WrongBytes),
)


def make_console() -> Console:
    """Standard error, for people."""
    return Console(stderr=True, soft_wrap=not sys.stderr.isatty(), highlight=False)


def wanted(path: Path, names: list[str]) -> Content:
    """What is locked: all of it, or the releases by full or base tag. Raises UsageError, LockError."""
    if not path.exists():
        raise UsageError(
            f"the lock file {path} does not exist.",
            "`lemonade-deploy depot lock default` makes it, with -i INVENTORY beside an inventory. "
            "Where there is one already, name it with -i INVENTORY or --lock FILE.",
        )
    known, debs = lockfile.read(path), lockfile.read_packages(path)
    if not known and not debs:
        raise UsageError(
            f"the lock file {path} names neither a release nor a package.",
            "`lemonade-deploy depot lock default` adds the newest qualified release.",
        )
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
    folder = folder_of(depot)
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
