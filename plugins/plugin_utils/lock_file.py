# SPDX-License-Identifier: Apache-2.0
"""The lock file, read on the controller for a task; what is wrong with it in a task's own words."""

from __future__ import annotations

import os
import stat
from typing import Any

from ansible_collections.lemonade.deploy.plugins.module_utils import lock_text
from ansible_collections.lemonade.deploy.plugins.module_utils.lock import FILE_NAME, LockError

REMEDY = "Correct the lock file, or write it anew with `lemonade-deploy depot lock`."


def read(path: str) -> Any:
    """The parsed content of the lock file *path*; None where there is none. Raises LockError."""
    if not path:
        return None
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise LockError(path, "", "is no file but a folder, a device or a pipe")
        with open(path, "rb") as stream:
            return lock_text.load(stream.read(), path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LockError(path, "", f"cannot be read: {error.strerror or error}") from error


def with_lock(arguments: dict[str, Any]) -> dict[str, Any]:
    """A task's *arguments* with `lock`, read from their `lock_file` unless it is given. Raises LockError."""
    if arguments.get("lock") is not None:
        return arguments
    lock = read(str(arguments.get("lock_file") or FILE_NAME))
    return arguments if lock is None else {**arguments, "lock": lock}


def failed(layer: str, error: LockError) -> dict[str, Any]:
    """The task's result."""
    return {
        "failed": True,
        "msg": f"{error} {REMEDY}",
        "failure": {"layer": layer, "message": str(error), "remedy": REMEDY},
    }
