# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy depot gc | export | import``: make room, carry a depot over an air gap."""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from lemonade_deploy.cli import options
from lemonade_deploy.cli.depot import app
from lemonade_deploy.cli.depot_input import failed, folder_of, place, readable, writable
from lemonade_deploy.cli.depot_store import (
    ERRORS,
    Folder,
    Inventory,
    LockFile,
    chunked,
    make_console,
    named,
    told,
    wanted,
)
from lemonade_deploy.cli.transfer import Shown
from lemonade_deploy.depot import archive, collect, lockfile, store
from lemonade_deploy.depot.archive import Content
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.errors import UsageError
from lemonade_deploy.exits import Exit

__all__ = ["app"]


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
    A folder that is no depot is refused; what a depot does not write stays.

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
    envelope, console = Envelope("depot", sys.argv[1:]), make_console()
    folder = folder_of(depot)
    try:
        keep = wanted(place(inventory, lock_file), [])
        left = collect.find(folder, keep.releases.values(), keep.packages).foreign
        with store.held(folder, "gc") if folder.is_dir() else nullcontext():
            gone = collect.collect(folder, keep.releases.values(), keep.packages, check)
    except ERRORS as error:
        return failed(console, envelope, error, json_output, "gc")
    for name, size in gone:
        console.print(f"{name}: {size:,} bytes", markup=False)
    for name in left:
        console.print(f"{name}: not the depot's own, left", markup=False)
    freed = sum(size for _name, size in gone)
    console.print(f"{'Would free' if check else 'Freed'} {freed:,} bytes.", markup=False)
    code = Exit.CHANGES if check and gone else Exit.OK
    if json_output:
        write(
            envelope.document(code, {}, removed=[name for name, _size in gone], left=left, freed_bytes=freed)
        )
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

    Write what is locked (releases, packages) and the lock into one tar file, for a
    controller without a network. `depot fetch` must have brought it.

      -i, --inventory FILE the lock file beside this inventory
      --lock FILE          the lock file itself (else: ./lemonade-deploy.lock)
      --depot DIR          folder (~/.cache/lemonade-deploy/depot)
      --json               one document on standard output

    Exit codes: 0 written, 1 failed, 64 wrong usage.

    Examples:
      lemonade-deploy depot export bundles.tar -i hosts.yml
      lemonade-deploy depot import bundles.tar -i hosts.yml
    """
    envelope, console = Envelope("depot", sys.argv[1:]), make_console()
    folder = folder_of(depot)
    try:
        path = place(inventory, lock_file)
        content = wanted(path, [])
        writable(target)
        if any(target.exists() and target.samefile(own) for own in (path, inventory) if own):
            raise UsageError(f"{target} is what the export is made from.", "Name another file.")
        if target.resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"{target} lies in the depot itself; name a file elsewhere.")
        lacking = archive.missing(folder, content)
        if lacking:
            raise FetchError(f"{folder} lacks {', '.join(lacking)}.", "Run `lemonade-deploy depot fetch`.")
        with Shown(console, "") as shown:
            size = archive.export(folder, content, target, lambda done: shown("export", done, content.size))
    except ERRORS as error:
        return failed(console, envelope, error, json_output, "export")
    console.print(f"{target}: {told(content)}, {size:,} bytes.", markup=False)
    if json_output:
        write(envelope.document(Exit.OK, {}, file=str(target), bytes=size, **named(content)))
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

    Put what is in an exported file into the depot, compared with the lock in it,
    and add it to the lock file. What is locked already with other bytes is an error
    that shows both.

      -i, --inventory FILE the lock file beside this inventory
      --lock FILE          the lock file itself (else: ./lemonade-deploy.lock)
      --depot DIR          folder (~/.cache/lemonade-deploy/depot)
      --json               one document on standard output

    Exit codes: 0 done, 1 failed or other bytes than locked, 64 wrong usage.

    Examples:
      lemonade-deploy depot import bundles.tar -i hosts.yml
      lemonade-deploy depot import /media/stick/bundles.tar --depot /srv/depot
    """
    envelope, console = Envelope("depot", sys.argv[1:]), make_console()
    folder, path = folder_of(depot), place(inventory, lock_file, written=True)
    readable(source, remedy="Give the file that `lemonade-deploy depot export` wrote.")
    try:
        known = Content(lockfile.read(path), lockfile.read_packages(path))
        whole = source.stat().st_size
        with ExitStack() as stack:
            with Shown(console, "") as shown:
                found, locked = archive.bring_in(
                    source,
                    folder,
                    known,
                    lambda done: shown("import", done, whole),
                    lambda: stack.enter_context(store.held(folder, "import")),
                )
            for release in found.releases.values():
                chunked(console, folder, release)
            lockfile.write(path, locked.releases, locked.packages)
    except ERRORS as error:
        return failed(console, envelope, error, json_output, "import")
    console.print(
        f"{', '.join([*found.releases, *found.packages])}: in {folder}, locked in {path}.", markup=False
    )
    if json_output:
        write(envelope.document(Exit.OK, {}, depot=str(folder), **named(found)))
    return Exit.OK
