# SPDX-License-Identifier: Apache-2.0
"""The engine's part of the cache: one builder at a time, whole results only, nothing outdated."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SCRATCH = ".making-"


@contextmanager
def locked_cache(home: Path) -> Iterator[Path]:
    """Hold the folder *home* for this process (waits for others); drops what a killed one left."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        for left in home.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left)
        yield home


@contextmanager
def scratch(home: Path) -> Iterator[Path]:
    """A folder to build in, on the cache's own file system; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=home) as temporary:
        yield Path(temporary)


def settle(draft: Path, place: Path) -> None:
    """Move a finished result to ``<kind>-<key>``; results of that kind with another key are dropped."""
    kind = place.name.rpartition("-")[0]
    for outdated in place.parent.glob(f"{kind}-*"):
        shutil.rmtree(outdated)
    draft.rename(place)
