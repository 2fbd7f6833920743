# SPDX-License-Identifier: Apache-2.0
"""What goes from the cache: roots and layers of older recipes, or all of it."""

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


def used_by_a_lab(mounts: str) -> bool:
    """Whether a host of any lab stands on the cache; *mounts* is the text of /proc/self/mounts."""
    return any(
        fields[2] == "overlay" and f"{cache_dir()}/" in fields[3]
        for fields in (line.split() for line in mounts.splitlines())
    )


def purge(own: Path) -> None:
    """Delete this lab's folder *own*, and the cache unless a host of another lab stands on it."""
    shutil.rmtree(own)
    if used_by_a_lab(Path("/proc/self/mounts").read_text(encoding="utf-8")):
        say(f"{cache_dir()} stays: hosts of another lab stand on it")
    elif cache_dir().exists():
        shutil.rmtree(cache_dir())


def _stale(folder: Path) -> list[Path]:
    """All but the newest folder of each kind (KIND-DIGEST); unfinished ones are left alone."""
    kinds: dict[str, list[Path]] = {}
    for path in folder.glob("[!.]*-*"):
        if path.is_dir() and path.suffix != ".building":
            kinds.setdefault(path.name.rpartition("-")[0], []).append(path)
    newest_last = [sorted(paths, key=lambda path: path.stat().st_mtime) for paths in kinds.values()]
    return [path for paths in newest_last for path in paths[:-1]]
