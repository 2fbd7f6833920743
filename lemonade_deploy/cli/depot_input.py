# SPDX-License-Identifier: Apache-2.0
"""What a depot's verbs are given, looked at before they work; and what went wrong, in plain words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from lemonade_deploy.depot import lock as locking
from lemonade_deploy.depot import lockfile, store
from lemonade_deploy.depot.archive import Damaged, NoExport
from lemonade_deploy.depot.mainline import NoSuchVersion
from lemonade_deploy.depot.packages import Contradiction, NoPackage
from lemonade_deploy.depot.store import WrongBytes
from lemonade_deploy.domain.fetch import NoAddress
from lemonade_deploy.domain.lock import FILE_NAME, LockError
from lemonade_deploy.envelope import Envelope, write
from lemonade_deploy.errors import UsageError, of_system
from lemonade_deploy.exits import Exit

_BAD_INPUT = (NoExport, NoPackage, NoSuchVersion, NoAddress)  # what was given is not what the verb takes


@contextmanager
def _looked() -> Iterator[None]:
    """Within, only what was given is looked at: what the system says of it is wrong input (UsageError)."""
    try:
        yield
    except OSError as error:
        raise of_system(error) from error


@_looked()
def place(inventory: str | None, lock_file: Path | None, written: bool = False) -> Path:
    """The lock file that the options name; *written*: it can be written. Raises UsageError."""
    if lock_file is not None:
        path = lock_file
    elif inventory is None:
        path = Path(FILE_NAME)
    elif not inventory.strip() or not Path(inventory).exists():
        raise UsageError(f"there is no inventory {inventory or repr(inventory)}")
    else:
        path = lockfile.beside(inventory)
    _plain(path)
    if written:
        writable(path)
    return path


def _plain(path: Path) -> None:
    """Raise UsageError where something else than a file is: a device would be replaced, a pipe waited for."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; a file is wanted.")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is a device or a pipe; a plain file is wanted.", "Name another place.")


def named(text: str) -> Path:
    """A path as it was given. Raises UsageError where nothing was: "" would mean the present folder."""
    if not text.strip():
        raise UsageError("--depot names nothing.", "Is a variable in the command empty? `.` is this folder.")
    return Path(text)


@_looked()
def writable(path: Path) -> None:
    """Say that a file cannot be written before hours went into it. Raises UsageError."""
    _plain(path)
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for {path.name}.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"the folder {path.parent} cannot be written.")


@_looked()
def readable(path: Path, option: str = "", remedy: str = "") -> Path:
    """*path*, a file that can be read; *option* is what named it. Raises UsageError."""
    by = f" ({option})" if option else ""
    if path.is_dir():
        raise UsageError(f"{path}{by} is a folder; a file is wanted.", remedy)
    if not path.exists():
        raise UsageError(f"there is no file {path}{by}.", remedy)
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path}{by} cannot be read by this user.", "Give this user the right to read it.")
    return path


@_looked()
def folder_of(depot: Path | None) -> Path:
    """The depot's folder, which need not be there yet. Raises UsageError where it cannot be one."""
    folder = depot or store.default_folder()
    for there in (folder, *folder.parents):
        if there.is_dir():
            break
        if there.exists() or there.is_symlink():
            what = "is" if there == folder else f"lies below {there}, which is"
            kind = "a file" if there.exists() else "a link that leads nowhere"
            raise UsageError(
                f"--depot {folder} {what} {kind}; a depot is a folder.",
                "Name a folder; one that is not there yet is made.",
            )
    return folder


def failed(
    console: Console, envelope: Envelope, error: Exception, json_output: bool, verb: str = "lock"
) -> int:
    """Say what went wrong; gives the exit code. Raises UsageError where what was given is wrong."""
    found, remedy = _explained(error)
    if isinstance(error, (*_BAD_INPUT, LockError)):
        raise UsageError(found, remedy) from error
    console.print(f"lemonade-deploy depot {verb}: {found}", markup=False, style="bold red")
    if remedy:
        console.print(remedy, markup=False)
    if json_output:
        failure = UsageError(found, remedy)
        write(envelope.document(Exit.FAILED, {}, failure))
    return Exit.FAILED


def _explained(error: Exception) -> tuple[str, str]:
    """(what was found, what to do)."""
    if isinstance(error, (locking.Changed, Contradiction)):
        remedy = "If the new bytes are wanted, remove the entry from the lock file and do the same again."
        return str(error), remedy
    if isinstance(error, WrongBytes):
        remedy = "It is damaged, or of another build: `depot fetch` (or the file again) replaces it."
        return str(error), remedy
    if isinstance(error, NoExport):
        return str(error), "`lemonade-deploy depot export FILE`, where the network is, writes such a file."
    if isinstance(error, Damaged):
        return str(error), "Copy it anew from where `lemonade-deploy depot export` wrote it, or export again."
    if isinstance(error, LockError):
        return str(error), "Correct the lock file, or take an earlier state of it from your version control."
    if isinstance(error, OSError) and error.filename:
        told = of_system(error)
        return told.found, told.remedy
    return getattr(error, "found", str(error)), getattr(error, "remedy", "")
