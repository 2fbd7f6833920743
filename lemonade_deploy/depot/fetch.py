# SPDX-License-Identifier: Apache-2.0
"""Bring a locked release to the controller: parallel ranges, resumable after a kill at any byte.

An asset grows in one file; beside it stands how far each of its segments is. The number is
written after the bytes, so a killed fetch repeats at most one read. The digest decides.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from lemonade_deploy.depot import store
from lemonade_deploy.depot.store import PARTIAL, PROGRESS
from lemonade_deploy.domain.bundle_fetch import WrongDigest
from lemonade_deploy.domain.fetch import Download, FetchError, Policy
from lemonade_deploy.domain.lock import Asset, Release

SEGMENT = 32 << 20  # bytes that one connection brings before it takes the next range
JOBS = 4  # connections at a time: one rarely fills a link to a CDN
_NUMBER = struct.Struct("<Q")

# (asset's name, bytes of it so far, its size)
Progress = Callable[[str, int, int | None], None]


class OtherBytes(Exception):
    """A whole file arrived and is not the wanted one."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        super().__init__(digest)


def _silent(_name: str, _done: int, _size: int | None) -> None:
    """Tell nobody."""


def fetch(
    release: Release,
    asset: Asset,
    url: str,
    folder: Path,
    progress: Progress = _silent,
    jobs: int = JOBS,
    policy: Policy | None = None,
) -> Path:
    """Put *asset* into *folder*, compared with its locked digest; so is what is there already.

    Raises WrongDigest, FetchError, OSError.
    """
    if not url and not store.has(folder / asset.name, asset.size, asset.sha256):
        raise FetchError(
            f"{release.tag}: {asset.name} is locked without an address, and the depot does not have it.",
            "Say where it is with --base-url.",
        )
    try:
        return bring(asset, url, folder, progress, jobs, policy)
    except OtherBytes as other:
        raise WrongDigest(release, asset, asset.size, other.digest, url) from other


def bring(
    asset: Asset,
    url: str,
    folder: Path,
    progress: Progress = _silent,
    jobs: int = JOBS,
    policy: Policy | None = None,
) -> Path:
    """The same for a file of no release. Raises OtherBytes, FetchError, OSError."""
    target = folder / asset.name
    # Its size alone says little: a tag that was made anew has parts of equal size, and disks rot.
    if store.has(target, asset.size, asset.sha256):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    partial, notes = folder / (asset.name + PARTIAL), folder / (asset.name + PROGRESS)
    digest = ""
    for _attempt in range(2):  # once more from its start: it, or what an earlier run left, may be damaged
        if not partial.exists():
            notes.unlink(missing_ok=True)
        _Ranges(asset, url, partial, notes, progress, policy or Policy()).run(jobs)
        digest = store.digest_of(partial)
        if digest == asset.sha256:
            partial.replace(target)
            notes.unlink()
            return target
        notes.unlink()
        partial.unlink()
    raise OtherBytes(digest)


class _Ranges:
    """One asset's download in segments."""

    def __init__(
        self, asset: Asset, url: str, partial: Path, notes: Path, progress: Progress, policy: Policy
    ) -> None:
        self._asset, self._url, self._policy, self._progress = asset, url, policy, progress
        self._partial, self._notes = partial, notes
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done = 0

    def run(self, jobs: int) -> None:
        """Bring all that is missing. Raises FetchError, OSError."""
        ranged = self._asset.size > SEGMENT and self._ranged()
        step = SEGMENT if ranged else max(self._asset.size, 1)
        starts = range(0, self._asset.size, step)
        with self._open(self._partial) as data, self._open(self._notes) as notes:
            begun = [self._begun(notes.fileno(), number, step) for number in range(len(starts))]
            self._done = sum(begun)
            self._progress(self._asset.name, self._done, self._asset.size)
            with ThreadPoolExecutor(jobs if ranged else 1) as pool:
                parts = [
                    pool.submit(self._part, data.fileno(), notes.fileno(), number, start, begun[number], step)
                    for number, start in enumerate(starts)
                ]
                try:
                    for part in parts:
                        part.result()
                except BaseException:
                    self._stop.set()  # the others end after their present read
                    pool.shutdown(cancel_futures=True)
                    raise
            data.truncate(self._asset.size)
            os.fsync(data.fileno())

    def _ranged(self) -> bool:
        probe = Download(self._url, policy=self._policy, kept=True)
        return probe.exists() and probe.ranged

    @staticmethod
    def _open(path: Path):  # type: ignore[no-untyped-def]
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)

    def _begun(self, notes: int, number: int, step: int) -> int:
        """Bytes of a segment that an earlier run brought; 0 where segments had another size then."""
        raw = os.pread(notes, _NUMBER.size, number * _NUMBER.size)
        begun = int(_NUMBER.unpack(raw)[0]) if len(raw) == _NUMBER.size else 0
        return begun if begun <= min(step, self._asset.size - number * step) else 0

    def _part(self, data: int, notes: int, number: int, start: int, begun: int, step: int) -> None:
        offset, end = start + begun, min(start + step, self._asset.size)
        if offset >= end:
            return
        download = Download(self._url, self._asset.size, self._policy, kept=True)
        with closing(download.chunks(offset, end)) as chunks:
            for chunk in chunks:
                written = 0
                while written < len(chunk):
                    written += os.pwrite(data, chunk[written:], offset + written)
                offset += len(chunk)
                os.pwrite(notes, _NUMBER.pack(offset - start), number * _NUMBER.size)
                self._tell(len(chunk))
                if self._stop.is_set():
                    return

    def _tell(self, amount: int) -> None:
        with self._lock:
            self._done += amount
            self._progress(self._asset.name, self._done, self._asset.size)
