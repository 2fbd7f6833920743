# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy depot``: bundles on the controller. ``lock`` notes what may be installed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.panel import Panel

from lemonade_deploy.cli import options
from lemonade_deploy.cli.depot_input import failed, place
from lemonade_deploy.cli.transfer import Shown, short
from lemonade_deploy.depot import github, lockfile, qualification
from lemonade_deploy.depot import lock as locking
from lemonade_deploy.domain.assets import BASE_URL
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.gfx import FAMILIES
from lemonade_deploy.domain.lock import LockError, Release
from lemonade_deploy.domain.releases import BadRelease, base_for, split, tag
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.errors import UsageError, did_you_mean
from lemonade_deploy.exits import Exit

DEFAULT_FAMILY = "gfx1151"

app = typer.Typer(no_args_is_help=True, cls=options.GroupPage)


@app.callback()
def _depot() -> None:
    """Usage: lemonade-deploy depot VERB [OPTIONS]

    Bundles, seen from this machine. Hosts install only what a lock file names;
    they take it from upstream, from mirrors, or from a depot in the LAN.

    Verbs:
      lock RELEASE    read a release once and note size and sha256 of every file
      fetch           bring what is locked to this machine, once
      add-deb, add-kernel   packages for hosts without a network
      serve           serve all of it to the hosts
      export, import  carry them to a machine without a network
      gc              remove what the lock file does not name

    Examples:
      lemonade-deploy depot lock vllm0.22.1-rocm7.13.0 --gfx gfx1151 -i hosts.yml
      lemonade-deploy depot fetch -i hosts.yml
    """


@app.command("lock", cls=options.Page)
def lock(
    release: Annotated[str, typer.Argument(metavar="RELEASE")],
    gfx: Annotated[list[str] | None, typer.Option("--gfx", metavar="GFX")] = None,
    inventory: Annotated[str | None, typer.Option("-i", "--inventory", metavar="FILE")] = None,
    lock_file: Annotated[Path | None, typer.Option("--lock", metavar="FILE")] = None,
    base_url: Annotated[str, typer.Option("--base-url", metavar="URL")] = BASE_URL,
    api: Annotated[str, typer.Option("--api", metavar="URL")] = "",
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy depot lock RELEASE [OPTIONS]

    Read every file of a release once (gigabytes; nothing is kept), and write size
    and sha256 of each, and the unpacked tree's digest, to lemonade-deploy.lock.
    Nobody else vouches for these bytes: look at them, commit the file. A release
    that is locked already and has other bytes now is an error that shows both.

    RELEASE is a tag of lemonade-sdk/vllm-rocm, with or without its GPU family;
    `default` is the newest qualified one. `latest` is never resolved.

      --gfx GFX            family or GPU, repeatable (gfx1151)
      -i, --inventory FILE the lock file goes beside this inventory
      --lock FILE          the lock file itself (else: ./lemonade-deploy.lock)
      --base-url URL       another server in GitHub's layout URL/TAG/FILE
      --api URL            GitHub's API for that repository, asked for its digests
      --json               one document on standard output

    Exit codes: 0 locked, 1 failed or other bytes than locked, 64 wrong usage.

    Examples:
      lemonade-deploy depot lock default -i inventory.yml
      lemonade-deploy depot lock vllm0.22.1-rocm7.13.0 --gfx gfx1151 --gfx gfx120X
    """
    envelope = Envelope("depot", sys.argv[1:])
    console = Console(stderr=True, soft_wrap=not sys.stderr.isatty(), highlight=False)
    path = place(inventory, lock_file, written=True)
    tags = _tags(release, gfx or [])
    try:
        known = lockfile.read(path)
        for name, family in tags:
            known = _lock_one(console, path, known, _Upstream(base_url, api), (name, family))
    except (FetchError, LockError, locking.Changed, OSError) as error:
        return failed(console, envelope, error, json_output)
    if json_output:
        entries = {name: known[name].archive for name, _family in tags}
        write(envelope.document(Exit.OK, {}, lock_file=str(path), locked=entries))
    return Exit.OK


def _tags(release: str, gfx: list[str]) -> list[tuple[str, str]]:
    """(tag, family) of each release to lock. Raises UsageError."""
    if not release.strip():
        raise UsageError("RELEASE is empty.", "`default` is the newest qualified one.")
    name = "" if release == "default" else release
    stated = split(name)[1]
    families = [_family(one) for one in gfx] or [stated or DEFAULT_FAMILY]
    try:
        return [(tag(base_for(name, family), family), family) for family in dict.fromkeys(families)]
    except BadRelease as error:
        raise UsageError(str(error)) from error


def _family(gfx: str) -> str:
    families = sorted(set(FAMILIES.values()))
    family = gfx if gfx in families else FAMILIES.get(gfx)
    if family is None:
        near = did_you_mean(gfx, [*families, *FAMILIES])
        raise UsageError(f"--gfx {gfx}: no release serves it. {near}", f"Known: {', '.join(families)}")
    return family


class _Upstream(NamedTuple):
    """Where a release is read, and who is asked about it."""

    url: str
    api: str

    def witnessed(self, release: Release) -> tuple[Release, list[str]]:
        """The release with what GitHub's API and upstream's feed say of it, and sentences for people.

        A mirror's or a lab's release is not what GitHub has and upstream tested. Raises FetchError.
        """
        own, said = self.url == BASE_URL, []
        if own or self.api:
            told, sentence = github.digests(release.tag, self.api or github.API)
            release = github.compared(release, told)
            said.append(sentence)
        if own:
            verdict, sentence = qualification.ask(release.tag)
            release = replace(release, qualification=verdict)
            said.append(sentence)
        return release, said


def _lock_one(
    console: Console, path: Path, known: dict[str, Release], upstream: _Upstream, wanted: tuple[str, str]
) -> dict[str, Release]:
    name, family = wanted
    with Shown(console, name) as shown:
        found = locking.lock_release(upstream.url, name, family, shown)
    found, said = upstream.witnessed(found)
    merged = locking.merge(known, found)
    if merged != known:
        lockfile.write(path, merged)
    _tell(console, path, found, fresh=name not in known)
    for sentence in said:
        console.print(sentence, markup=False)
    return merged


def _tell(console: Console, path: Path, release: Release, fresh: bool) -> None:
    if not fresh:
        console.print(f"{release.tag} is locked already, and unchanged.", markup=False)
        return
    lines: list[str] = []
    evidence = all(asset.upstream for asset in release.assets)
    for asset in release.assets:
        lines += [f"{short(asset.name, release.tag)}, {asset.size:,} bytes", f"  {asset.sha256}"]
    if release.tree:
        tree = release.tree
        lines += [f"unpacked tree, {tree.files:,} files, {tree.size:,} bytes", f"  {tree.digest}"]
    text = "\n".join(
        [
            release.tag,
            "TRUST ON FIRST USE: nothing vouches for these bytes but the server that sent them:",
            release.source,
            *(
                ["(GitHub's API gives the same digests; its word and theirs are one party's.)"]
                if evidence
                else []
            ),
            "From now on hosts install exactly these (sha256) and refuse all others.",
            "",
            *lines,
            "",
            f"Written to {path}. Compare with another source if you have one, then commit it.",
        ]
    )
    if console.is_terminal:
        console.print(Panel(text.replace("[", r"\["), border_style="bold yellow"))
    else:
        console.print(text, markup=False)
