# SPDX-License-Identifier: Apache-2.0
"""Remove from a depot what no lock names, and nothing that a depot does not write.

The folder is one that a user names: a slip of the finger must not cost other data. So it needs the
depot's mark, and of what is in it only what has the depot's own forms goes. The rest is told.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lemonade_deploy.depot import store
from lemonade_deploy.depot.store import INCOMING, MARK, PARTIAL, PROGRESS, SHELVES, TOKEN
from lemonade_deploy.domain import depot_index
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.lock import Release
from lemonade_deploy.domain.releases import is_tag

_ON_SHELF = re.compile(
    r"packages/[^/]+\.deb|mainline/key\.asc|mainline/v\d[^/]*/(index\.html|amd64/[^/]+)", re.ASCII
)


@dataclass
class Found:
    """What goes, and what stays though no lock names it: it is not the depot's (names below it)."""

    doomed: list[Path] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


def find(folder: Path, keep: Iterable[Release], packages: Iterable[str] = ()) -> Found:
    """What neither *keep* nor *packages* (paths below the depot) need. Raises FetchError: no depot."""
    if not folder.is_dir():
        return Found()
    if not store.marked(folder):
        raise FetchError(
            f"{folder} is no depot: neither {MARK} nor the depot's {TOKEN} is in it. Nothing was removed.",
            "Check --depot. `lemonade-deploy depot fetch` marks a folder as a depot.",
        )
    wanted, kept, found = {release.tag: release for release in keep}, set(packages), Found()
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_dir():
            if path.name not in (MARK, TOKEN) and not path.name.startswith(f".{TOKEN}-"):
                found.foreign.append(path.name)
        elif path.name in SHELVES:
            _shelf(path, kept, folder, found)
        elif path.name == INCOMING:
            _shelf(path, set(), folder, found, path)
        elif path.name in wanted:
            _strays(path, wanted[path.name], folder, found)
        elif is_tag(path.name) and _flat(path):
            found.doomed.append(path)
        else:
            found.foreign.append(path.name)
    return found


def collect(
    folder: Path, keep: Iterable[Release], packages: Iterable[str] = (), check: bool = False
) -> list[tuple[str, int]]:
    """Remove what `find` dooms; (name, bytes) of each. *check*: only say it. Raises FetchError, OSError."""
    gone = []
    for one in find(folder, keep, packages).doomed:
        gone.append((str(one.relative_to(folder)), store.size_of(one)))
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


def _flat(path: Path) -> bool:
    """Whether a folder holds files only, as a release's does."""
    return all(entry.is_file() and not entry.is_symlink() for entry in path.iterdir())


def _shelf(path: Path, kept: set[str], folder: Path, found: Found, base: Path | None = None) -> None:
    """Files of packages below *path*; *base*: the folder that holds the shelves, where it is another."""
    for file in store.files_below(path):
        # One that is being fetched counts as the whole one.
        name = str(file.relative_to(base or folder)).removesuffix(PARTIAL).removesuffix(PROGRESS)
        if name in kept:
            continue
        if _ON_SHELF.fullmatch(name) and not file.is_symlink():
            found.doomed.append(file)
        else:
            found.foreign.append(str(file.relative_to(folder)))


def _strays(path: Path, release: Release, folder: Path, found: Found) -> None:
    """Files in a wanted release's folder that are neither its assets nor its chunks."""
    index = store.index_of(folder, release)
    known = {asset.name for asset in release.assets}
    known |= {f"{asset.name}{end}" for asset in release.assets for end in (PARTIAL, PROGRESS)}
    if index:
        known |= {depot_index.NAME, *(chunk.name for chunk in index.chunks)}
    for file in sorted(path.iterdir()):
        if file.name in known:
            continue
        if file.is_file() and not file.is_symlink():
            found.doomed.append(file)
        else:
            found.foreign.append(str(file.relative_to(folder)))
