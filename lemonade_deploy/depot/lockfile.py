# SPDX-License-Identifier: Apache-2.0
"""Read and write `lemonade-deploy.lock` on the controller."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lemonade_deploy.depot import packages
from lemonade_deploy.depot.packages import Package
from lemonade_deploy.domain.lock import FILE_NAME, Release, document, parse
from lemonade_deploy.domain.lock_text import load

_HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Written by `lemonade-deploy depot lock`; commit it. The only source of digests: hosts refuse
# whatever differs. To accept other bytes for a tag, remove its entry and lock it again.
"""


def beside(inventory: str) -> Path:
    """The lock file that belongs to an inventory (a file, or a folder of files)."""
    path = Path(inventory)
    return (path if path.is_dir() else path.parent) / FILE_NAME


def read(path: Path) -> dict[str, Release]:
    """The releases in a lock file; none where there is no file. Raises LockError, OSError."""
    return parse(content, str(path)) if (content := _content(path)) is not None else {}


def read_packages(path: Path) -> dict[str, Package]:
    """The packages in a lock file; none where there is no file. Raises LockError, OSError."""
    content = _content(path)
    return packages_of(content, str(path)) if content is not None else {}


def packages_of(content: Any, file: str) -> dict[str, Package]:
    """The packages in a lock file's parsed content. Raises LockError."""
    return packages.parse(content.get("packages", {}), file) if isinstance(content, Mapping) else {}


def _content(path: Path) -> Any:
    if not path.exists():
        return None
    return load(path.read_bytes(), str(path))


def text(releases: Mapping[str, Release], locked: Mapping[str, Package]) -> str:
    """A lock file's YAML."""
    content = document(releases)
    if locked:
        content["packages"] = packages.document(locked.values())
    return yaml.safe_dump(content, sort_keys=False, width=1000)


def write(path: Path, releases: Mapping[str, Release], locked: Mapping[str, Package] | None = None) -> None:
    """Replace the lock file in one step; packages that it has stay, unless others are *locked*.

    Raises LockError, OSError.
    """
    content = _HEADER + text(releases, read_packages(path) if locked is None else locked)
    told = load(content.encode(), str(path))  # what would be refused on reading is not written
    parse(told, str(path))
    packages_of(told, str(path))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{FILE_NAME}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
