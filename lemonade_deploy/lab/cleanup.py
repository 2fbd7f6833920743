# SPDX-License-Identifier: Apache-2.0
"""Removes roots and layers of older recipes from the cache."""

from __future__ import annotations

import shutil
from pathlib import Path

from .paths import cache_dir
from .say import say
from .state import exclusive


def prune() -> None:
    """Keep the newest of each kind and whatever a host of any lab still stands on."""
    used = Path("/proc/self/mounts").read_text(encoding="utf-8")
    removed = 0
    for name in ("roots", "layers"):
        folder = cache_dir() / name
        if not folder.is_dir():
            continue
        with exclusive(folder / "lock", "works on the cache"):
            for stale in _stale(folder):
                if str(stale) not in used:
                    shutil.rmtree(stale)
                    removed += 1
    if removed:
        say(f"removed {removed} older roots and layers from the cache")


def _stale(folder: Path) -> list[Path]:
    """All but the newest folder of each kind (KIND-DIGEST); unfinished ones are left alone."""
    kinds: dict[str, list[Path]] = {}
    for path in folder.glob("[!.]*-*"):
        if path.is_dir() and path.suffix != ".building":
            kinds.setdefault(path.name.rpartition("-")[0], []).append(path)
    newest_last = [sorted(paths, key=lambda path: path.stat().st_mtime) for paths in kinds.values()]
    return [path for paths in newest_last for path in paths[:-1]]
