# SPDX-License-Identifier: Apache-2.0
"""A mistake in what the user gave, told in the user's words and never as a traceback."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable


class UsageError(Exception):
    """Wrong usage or input: exit 64. ``found`` names what is wrong, ``remedy`` what to do."""

    def __init__(self, found: str, remedy: str = "") -> None:
        self.found = found
        self.remedy = remedy
        super().__init__(f"{found}\n{remedy}".strip())


# What the system says of a path that was named wrongly, or that is not this user's.
_OF_A_PATH = {
    *(errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
}


def is_of_a_path(error: OSError) -> bool:
    """Whether what the system said is about a path that was given, not about a disk or a network."""
    return error.filename is not None and error.errno in _OF_A_PATH


def of_system(error: OSError) -> UsageError:
    """What the system said about a file, without its number and its brackets."""
    if error.filename is None:
        return UsageError(error.strerror or str(error))
    name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
    if isinstance(error, PermissionError):
        return UsageError(
            f"this user may not read or write {name}.",
            "Run it as the user whose file it is, or name another place.",
        )
    if isinstance(error, FileNotFoundError):
        return UsageError(f"there is no file {name}.", "Check the path.")
    if isinstance(error, (NotADirectoryError, FileExistsError)):
        return UsageError(
            f"{name}: a folder is wanted there, and something else is in its place.", "Name another place."
        )
    return UsageError(f"{name}: {error.strerror or error}.", "Check the path." if is_of_a_path(error) else "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest of *known*, or nothing where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else ""
