# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy depot add-deb | add-kernel``: packages for hosts without a network."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lemonade_deploy.cli import options
from lemonade_deploy.cli.depot import app
from lemonade_deploy.cli.depot_input import failed, folder_of, place, readable
from lemonade_deploy.cli.depot_store import ERRORS, Folder, Inventory, LockFile, make_console
from lemonade_deploy.cli.transfer import Shown
from lemonade_deploy.depot import lockfile, mainline, packages, store
from lemonade_deploy.depot.packages import Package
from lemonade_deploy.domain import mainline_source, signature
from lemonade_deploy.domain.kernel_choice import Mainline
from lemonade_deploy.domain.lemonade_source import PACKAGE
from lemonade_deploy.domain.mainline_source import Tampered
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.errors import UsageError
from lemonade_deploy.exits import Exit

__all__ = ["app"]


@app.command("add-deb", cls=options.Page)
def add_deb_command(
    source: Annotated[str, typer.Argument(metavar="URL|FILE")],
    digest: Annotated[str | None, typer.Option("--sha256", metavar="HEX")] = None,
    inventory: Inventory = None,
    lock_file: LockFile = None,
    depot: Folder = None,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy depot add-deb URL|FILE [OPTIONS]

    Put a package, such as Lemonade Server's, into the depot and note its digest in
    the lock file. `depot export` takes it along, `depot serve` serves it below
    packages/. One that is locked with other bytes is an error that shows both.

      --sha256 HEX         what it must be; without it the bytes are trusted as
                           they come, and that is said
      -i, --inventory FILE the lock file beside this inventory
      --lock FILE          the lock file itself (else: ./lemonade-deploy.lock)
      --depot DIR          folder (~/.cache/lemonade-deploy/depot)
      --json               one document on standard output

    Exit codes: 0 done, 1 failed or other bytes than locked, 64 wrong usage.

    Examples:
      lemonade-deploy depot add-deb ./lemonade-server_11.9.0_amd64.deb -i hosts.yml
      lemonade-deploy depot add-deb https://example.org/a_1_all.deb --sha256 …
    """
    envelope, console = Envelope("depot", sys.argv[1:]), make_console()
    sha256 = digest or ""
    if digest is not None and (len(sha256) != 64 or set(sha256.lower()) - set("0123456789abcdef")):
        raise UsageError(f"--sha256 {sha256 or repr(sha256)}: 64 hexadecimal digits are wanted.")
    folder, path = folder_of(depot), place(inventory, lock_file, written=True)
    try:
        name = f"{store.DEBS}/{packages.deb_name(source)}"
        if "://" not in source:
            readable(Path(source))
        known = lockfile.read_packages(path).get(name)
        if known and sha256 and known.sha256 != sha256.lower():
            raise packages.Contradiction(known, Package(name, known.size, sha256.lower(), "--sha256"))
        with store.held(folder, "add-deb"):
            with Shown(console, "packages") as shown:
                draft = packages.take(folder / store.INCOMING, name, source, sha256, shown)
            keep(folder, path, [draft])
    except ERRORS as error:
        return failed(console, envelope, error, json_output, "add-deb")
    if known is None and not sha256:
        console.print(
            f"TRUST ON FIRST USE: nothing vouches for {draft.name} but {source}. Its sha256 is\n"
            f"  {draft.sha256}\nCompare it with what the publisher says.",
            markup=False,
        )
    say(console, path, [draft])
    if json_output:
        write(envelope.document(Exit.OK, {}, depot=str(folder), packages=[draft.path]))
    return Exit.OK


@app.command("add-kernel", cls=options.Page)
def add_kernel_command(
    version: Annotated[str, typer.Argument(metavar="VERSION")],
    url: Annotated[str, typer.Option("--url", metavar="URL|DIR")] = Mainline().url,
    key: Annotated[str, typer.Option("--key", metavar="URL|FILE")] = "",
    fingerprint: Annotated[str, typer.Option("--fingerprint", metavar="HEX")] = Mainline().fingerprint,
    inventory: Inventory = None,
    lock_file: LockFile = None,
    depot: Folder = None,
    json_output: options.Json = False,
) -> int:
    """Usage: lemonade-deploy depot add-kernel VERSION [OPTIONS]

    Put a mainline kernel of Ubuntu's into the depot: packages, signed CHECKSUMS and
    key, verified here as hosts do again. `depot serve` serves them below mainline/.

      --url URL|DIR        another mirror (kernel.ubuntu.com/mainline)
      --key URL|FILE       the signing key (keyserver.ubuntu.com)
      --fingerprint HEX    whose key it is (Ubuntu's Kernel PPA)
      -i, --inventory FILE the lock file beside this inventory, or --lock FILE
      --depot DIR          folder (~/.cache/lemonade-deploy/depot)
      --json               one document on standard output

    Exit codes: 0 done, 1 failed or other bytes than locked, 64 wrong usage.

    Examples:
      lemonade-deploy depot add-kernel 6.18.20 -i hosts.yml
      lemonade-deploy depot add-kernel 6.18.20 --url /srv/mirror/mainline
    """
    envelope, console = Envelope("depot", sys.argv[1:]), make_console()
    folder, path = folder_of(depot), place(inventory, lock_file, written=True)
    try:
        wanted, known = mainline.version_of(version), lockfile.read_packages(path)
        _look(url, key, fingerprint)
        settings = Mainline(url, fingerprint, key)
        with store.held(folder, "add-kernel"):
            with Shown(console, "packages") as shown:
                drafts = mainline.take(folder / store.INCOMING, wanted, settings, shown)
            drafts = [d for d in drafts if d.path not in known or not mainline.changes_alone(d.path)]
            keep(folder, path, drafts)
    except (*ERRORS, Tampered) as error:
        return failed(console, envelope, error, json_output, "add-kernel")
    say(console, path, drafts)
    console.print(
        "Hosts take it with\n"
        "  kernel_source: mainline\n"
        f"  kernel_version: {wanted.release}\n"
        f"  kernel_mainline_url: DEPOT/{store.MAINLINE}\n"
        f"  kernel_mainline_key: DEPOT/{mainline.KEY}\n"
        "where DEPOT is the address that `depot serve` prints.",
        markup=False,
    )
    if json_output:
        write(envelope.document(Exit.OK, {}, depot=str(folder), packages=[draft.path for draft in drafts]))
    return Exit.OK


def _look(url: str, key: str, fingerprint: str) -> None:
    """Raise UsageError where a place on this machine is not there, or the fingerprint is none."""
    digits = signature.normal(fingerprint)
    if len(digits) not in (40, 64) or set(digits) - set("0123456789ABCDEF"):
        raise UsageError(
            f"--fingerprint {fingerprint}: 40 hexadecimal digits are wanted.",
            "Ubuntu publishes its own at wiki.ubuntu.com/Kernel/MainlineBuilds.",
        )
    if (mirror := mainline_source.local_path(url)) and not Path(mirror).is_dir():
        raise UsageError(f"there is no folder {mirror} (--url).", "Give a mirror's folder, or its address.")
    if key and (file := mainline_source.local_path(key)):
        readable(Path(file), "--key")


def keep(folder: Path, path: Path, drafts: Iterable[Package]) -> None:
    """Take over files from the depot's INCOMING folder, once the lock agrees. Raises Contradiction."""
    drafts = list(drafts)
    merged = packages.merge(lockfile.read_packages(path), drafts)
    for draft in drafts:
        target = folder / draft.path
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / store.INCOMING / draft.path).replace(target)
    shutil.rmtree(folder / store.INCOMING)
    lockfile.write(path, lockfile.read(path), merged)


def say(console: Console, path: Path, kept: Iterable[Package]) -> None:
    """What is there now, and for lemond what an inventory says to use it."""
    for package in kept:
        console.print(f"{package.path}, {package.size:,} bytes, locked in {path}.", markup=False)
        if package.name.startswith(f"{PACKAGE}_"):
            console.print(
                "Hosts take it with\n"
                "  lemonade_server_source: deb\n"
                f"  lemonade_server_deb: DEPOT/{package.path}\n"
                f"  lemonade_server_deb_sha256: {package.sha256}\n"
                "where DEPOT is the address that `depot serve` prints.",
                markup=False,
            )
