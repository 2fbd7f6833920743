# SPDX-License-Identifier: Apache-2.0
"""The depot's folder: one folder a release tag, with the release's own files and its chunks.

What ends in PARTIAL is being made. A file with its final name was compared with the lock.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from lemonade_deploy.domain import depot_index
from lemonade_deploy.domain.depot_index import BadIndex, Index
from lemonade_deploy.domain.lock import Release

PARTIAL = ".partial"
PROGRESS = ".progress"
TOKEN = "token"  # noqa: S105  a file's name


def default_folder() -> Path:
    """Where the depot is unless the user says otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "lemonade-deploy" / "depot"


def index_of(folder: Path, release: Release) -> Index | None:
    """The index of a release whose chunks are all there with their sizes, or None."""
    place = folder / release.tag
    try:
        index = depot_index.parse((place / depot_index.NAME).read_text(encoding="utf-8"), release)
        whole = all((place / chunk.name).stat().st_size == chunk.size for chunk in index.chunks)
    except (FileNotFoundError, BadIndex):
        return None
    return index if whole else None


def size_of(path: Path) -> int:
    """Bytes in the files below *path*, or of the file."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def collect(folder: Path, keep: Iterable[Release], check: bool = False) -> list[tuple[str, int]]:
    """Remove what none of *keep* needs; (name, bytes) of each. *check*: only say it."""
    wanted = {release.tag: release for release in keep}
    gone = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.is_dir():
            continue  # the token
        doomed = [path] if path.name not in wanted else _strays(path, wanted[path.name], folder)
        for one in doomed:
            gone.append((str(one.relative_to(folder)), size_of(one)))
            if check:
                continue
            if one.is_dir():
                shutil.rmtree(one)
            else:
                one.unlink()
    return gone


def _strays(path: Path, release: Release, folder: Path) -> list[Path]:
    """Files in a wanted release's folder that are neither its assets nor its chunks."""
    index = index_of(folder, release)
    known = {asset.name for asset in release.assets}
    known |= {f"{asset.name}{end}" for asset in release.assets for end in (PARTIAL, PROGRESS)}
    if index:
        known |= {depot_index.NAME, *(chunk.name for chunk in index.chunks)}
    return [file for file in sorted(path.iterdir()) if file.name not in known]
