# SPDX-License-Identifier: Apache-2.0
"""Read and write `lemonade-deploy.lock` on the controller."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from lemonade_deploy.domain.lock import FILE_NAME, LockError, Release, document, parse

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
    if not path.exists():
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LockError(str(path), "", f"is no YAML: {error}") from error
    return parse(content, str(path))


def write(path: Path, releases: Mapping[str, Release]) -> None:
    """Replace the lock file in one step. Raises OSError."""
    text = _HEADER + yaml.safe_dump(document(releases), sort_keys=False, width=1000)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{FILE_NAME}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
