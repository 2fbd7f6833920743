# SPDX-License-Identifier: Apache-2.0
"""Copies from the cache into the served tree; copies, because tests may spoil what is served."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path


def releases(sources: Mapping[str, tuple[Path, Iterable[str]]], downloads: Path) -> None:
    """Make each tag's folder hold exactly its assets (tag → folder, asset names)."""
    for tag, (folder, names) in sources.items():
        _mirror({name: folder / name for name in names}, downloads / tag)


def repositories(store: Path, hub: Path) -> None:
    """Make each ``<org>/<repo>`` of *store* the same below *hub*; other repositories there stay."""
    for folder in store.glob("*/*"):
        files = (path for path in folder.rglob("*") if path.is_file())
        _mirror({str(path.relative_to(folder)): path for path in files}, hub / folder.relative_to(store))


def _mirror(wanted: Mapping[str, Path], target: Path) -> None:
    """Files that are there unchanged (size and time) stay, others are copied, the rest goes."""
    for found in target.rglob("*"):
        if found.is_file() and str(found.relative_to(target)) not in wanted:
            found.unlink()
    for name, source in wanted.items():
        served = target / name
        if served.is_file() and _stamp(served.stat()) == _stamp(source.stat()):
            continue
        served.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, served)


def _stamp(state: os.stat_result) -> tuple[int, int]:
    return state.st_size, state.st_mtime_ns
