# SPDX-License-Identifier: Apache-2.0
"""The depot's folder: one folder a release tag, with the release's own files and its chunks.

Packages lie in `packages` and, laid out as kernel.ubuntu.com does, in `mainline`.

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
DEBS, MAINLINE = "packages", "mainline"
SHELVES = (DEBS, MAINLINE)  # folders of packages beside those of releases
INCOMING = "incoming"  # what the lock has not agreed to yet


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


def _files(path: Path) -> list[Path]:
    return [file for file in sorted(path.rglob("*")) if file.is_file()]


def size_of(path: Path) -> int:
    """Bytes in the files below *path*, or of the file."""
    return sum(file.stat().st_size for file in ([path] if path.is_file() else _files(path)))


def collect(
    folder: Path, keep: Iterable[Release], packages: Iterable[str] = (), check: bool = False
) -> list[tuple[str, int]]:
    """Remove what neither *keep* nor *packages* (paths below the depot) need; (name, bytes) of each.

    *check*: only say it.
    """
    wanted, kept = {release.tag: release for release in keep}, set(packages)
    gone = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.is_dir():
            continue  # the token
        if path.name in SHELVES:
            doomed = [file for file in _files(path) if _name(file, folder) not in kept]
        elif path.name in wanted:
            doomed = _strays(path, wanted[path.name], folder)
        else:
            doomed = [path]
        for one in doomed:
            gone.append((str(one.relative_to(folder)), size_of(one)))
            if check:
                continue
            if one.is_dir():
                shutil.rmtree(one)
                continue
            one.unlink()
            for parent in one.parents:
                if parent == folder or any(parent.iterdir()):
                    break
                parent.rmdir()
    return gone


def _name(file: Path, folder: Path) -> str:
    """A file's path below the depot; one that is being fetched counts as the whole one."""
    return str(file.relative_to(folder)).removesuffix(PARTIAL).removesuffix(PROGRESS)


def _strays(path: Path, release: Release, folder: Path) -> list[Path]:
    """Files in a wanted release's folder that are neither its assets nor its chunks."""
    index = index_of(folder, release)
    known = {asset.name for asset in release.assets}
    known |= {f"{asset.name}{end}" for asset in release.assets for end in (PARTIAL, PROGRESS)}
    if index:
        known |= {depot_index.NAME, *(chunk.name for chunk in index.chunks)}
    return [file for file in sorted(path.iterdir()) if file.name not in known]
