# SPDX-License-Identifier: Apache-2.0
"""Lay down a bundle: disk check, stream, verify, unpack beside, check, sync, rename.

Killed anywhere, a host has the old bundle or the new one: the final name appears by one
rename after everything was verified, `current` by another.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import bundle, bundle_check, bundle_space
from .bundle_fetch import Source, WrongDigest
from .bundle_sources import DepotChunks, Place, knock
from .fetch import FetchError, Policy
from .gunzip import ArchiveError, inflate
from .host import Host
from .lock import Release
from .manifest import Manifest
from .module import Refused
from .paths import BUNDLE_CURRENT, BUNDLE_ROOT, CACHE_DIR, LAUNCHER, PREFIX
from .pump import ahead
from .tree_writer import TreeWriter
from .unpack import unpack

LOCK_WAIT = 1800.0  # s; another run that lays down a bundle is doing our work
QUEUE = 8  # chunks between two stages

Check = Callable[[Host, str, str], None]
Archive = Generator[bytes, None, None]


@dataclass(frozen=True)
class Order:
    """What to lay down and from where. ``check`` raises Refused for a bundle that cannot work."""

    release: Release
    base_url: str
    policy: Policy = field(default_factory=Policy)
    check: Check = bundle_check.check
    places: tuple[Place, ...] = ()

    def sources(self) -> tuple[Place, ...]:
        """The places in their order."""
        return self.places or (Place("upstream", self.base_url),)


@dataclass
class Stats:
    """What a run did: bytes over the network, seconds of the two halves, retries, remarks."""

    fetched: int = 0
    retries: int = 0
    lay_down_seconds: float = 0.0
    static_check_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    source: str = ""

    def public(self) -> dict[str, Any]:
        """The result key ``lay_down``."""
        return {
            "fetched_bytes": self.fetched,
            "retries": self.retries,
            "seconds": round(self.lay_down_seconds, 3),
            "static_check_seconds": round(self.static_check_seconds, 3),
            "source": self.source,
        }


def lay_down(host: Host, order: Order, name: str, stats: Stats) -> None:
    """Make BUNDLE_ROOT/*name* the complete tree of the release. Raises Refused, OSError."""
    ensure_root(host)
    staging = f"{BUNDLE_ROOT}/{name}{bundle.PARTIAL}"
    with _exclusive(host):
        if bundle.read_tree(host, name):
            return  # the run that was waited for did it
        bundle_space.erase(host.path(staging))
        bundle_space.check_space(host, order.release)
        try:
            manifest = _unpacked(host, order, staging, stats)
            began = time.monotonic()
            order.check(host, staging, order.release.family)
            stats.static_check_seconds = time.monotonic() - began
            _finish(host, order.release, manifest, staging, name)
        except OSError as error:
            bundle_space.erase(host.path(staging))
            raise bundle_space.explained(host, error, order.release) from error
        except BaseException:
            bundle_space.erase(host.path(staging))
            raise
        bundle_space.erase(host.path(f"{CACHE_DIR}/{order.release.tag}"))


def _unpacked(host: Host, order: Order, staging: str, stats: Stats) -> Manifest:
    """Fill the staging folder from the first place that can; the others are remarks."""
    began = time.monotonic()
    failed: list[Refused] = []
    try:
        *others, last = order.sources()
        for place in (*others, last):
            try:
                if place is not last:
                    knock(order.release, place, order.policy)
                manifest = _twice(host, order, place, staging, stats)
            except (FetchError, WrongDigest) as error:
                failed.append(error)
                stats.notes.append(f"{place} could not be used: {error.found}")
                continue
            stats.source = str(place)
            return manifest
    except ArchiveError as error:
        raise Refused(
            f"Release {order.release.tag} has the locked digests, but its archive is unusable: {error}.",
            "Choose another release with vllm_rocm_release.",
        ) from error
    finally:
        stats.lay_down_seconds = time.monotonic() - began
    if len(failed) == 1:
        raise failed[0]
    told = " ".join(f"{place}: {error.found}" for place, error in zip(order.sources(), failed, strict=True))
    raise Refused(f"No place has release {order.release.tag}. {told}", failed[-1].remedy)


def _twice(host: Host, order: Order, place: Place, staging: str, stats: Stats) -> Manifest:
    """One more attempt where an asset arrived damaged."""
    try:
        return _stream(host, order, place, staging, stats)
    except WrongDigest as wrong:
        stats.notes.append(f"{wrong.asset} arrived with a wrong digest and was fetched once more")
        return _stream(host, order, place, staging, stats)


def _opened(host: Host, order: Order, place: Place, stats: Stats) -> tuple[Source | DepotChunks, Archive]:
    """What counts the bytes, and the tar archive as a stream."""
    if place.kind == "depot":
        depot = DepotChunks(order.release, place, order.policy)
        index = depot.index()
        if not isinstance(index, str):
            return depot, depot.tar(index)
        stats.notes.append(f"{place}: the release's own files are used, because {index}")
    cache, remark = bundle_space.cache_folder(host, order.release)
    stats.notes += [remark] if remark and remark not in stats.notes else []
    source = Source(order.release, place.url, cache, order.policy, place.token)
    return source, inflate(ahead(source.chunks(), QUEUE))


def _stream(host: Host, order: Order, place: Place, staging: str, stats: Stats) -> Manifest:
    root, tree = host.path(staging), order.release.tree
    bundle_space.erase(root)
    os.mkdir(root)
    os.chmod(root, 0o755)  # noqa: S103  the service's user reads it
    source, archive = _opened(host, order, place, stats)
    chunks = ahead(archive, 1 if isinstance(source, DepotChunks) else QUEUE)
    interval = sys.getswitchinterval()
    # Three threads that mostly run outside the interpreter's lock: 5 ms until a waiting one gets
    # it would cap the stream at ~200 MiB/s.
    sys.setswitchinterval(0.0005)
    try:
        with TreeWriter(root) as writer:
            manifest = unpack(chunks, writer, tree.size if tree else None)
            writer.close()
        if tree and manifest.digest() != tree.digest:
            raise ArchiveError(
                f"the tree's manifest is {manifest.digest()}, the lock file says {tree.digest}"
            )
        return manifest
    except ArchiveError as error:
        if isinstance(source, DepotChunks):
            raise _from_depot(error, place) from error
        raise
    finally:
        sys.setswitchinterval(interval)
        chunks.close()
        stats.fetched += source.fetched
        stats.retries += source.retries


def _from_depot(error: ArchiveError, place: Place) -> FetchError:
    """Chunks are not locked bytes: what is wrong with them is the depot's fault, not the release's."""
    return FetchError(
        f"{place}: its chunks are not the locked release: {error}.",
        "Remove the release's folder from the depot, then run `lemonade-deploy depot fetch` again.",
    )


def _finish(host: Host, release: Release, manifest: Manifest, staging: str, name: str) -> None:
    """Write manifest and record, get all of it on the disk, give it its name."""
    host.write(f"{staging}/{bundle.MANIFEST}", manifest.text())
    record = {
        "schema": bundle.RECORD_SCHEMA,
        "tag": release.tag,
        "family": release.family,
        "archive": release.archive,
        "assets": [{"name": a.name, "size": a.size, "sha256": a.sha256} for a in release.assets],
        "tree": {"digest": manifest.digest(), "size": manifest.size, "files": manifest.files},
        "installed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    host.write(f"{staging}/{bundle.RECORD}", json.dumps(record, indent=1) + "\n")
    host.run(("sync", "--file-system", host.path(staging)), timeout=1800)
    os.rename(host.path(staging), host.path(f"{BUNDLE_ROOT}/{name}"))
    sync_folder(host, BUNDLE_ROOT)


def activate(host: Host, name: str) -> None:
    """Point `current` at a complete tree, in one step that is on the disk afterwards."""
    stamp = host.path(f"{BUNDLE_ROOT}/{name}/{bundle.ACTIVATED}")
    with open(stamp, "w", encoding="utf-8"):
        os.utime(stamp)
    bundle_space.erase(host.path(f"{BUNDLE_ROOT}/{name}/{bundle.ROLLED_BACK}"))
    link = host.path(BUNDLE_CURRENT)
    bundle_space.erase(f"{link}{bundle.PARTIAL}")
    os.symlink(name, f"{link}{bundle.PARTIAL}")
    os.replace(f"{link}{bundle.PARTIAL}", link)
    sync_folder(host, BUNDLE_ROOT)


def remove_tree(name: str, host: Host) -> None:
    """Remove a tree; it first loses its name, so that half of one is never taken for whole."""
    doomed = host.path(f"{BUNDLE_ROOT}/{name}.old{bundle.PARTIAL}")
    bundle_space.erase(doomed)
    os.rename(host.path(f"{BUNDLE_ROOT}/{name}"), doomed)
    bundle_space.erase(doomed)


def remove(path: str, host: Host) -> None:
    """Remove a leftover, while no other run is at work."""
    with _exclusive(host):
        bundle_space.erase(host.path(path))


def ensure_root(host: Host) -> None:
    """Make the kit's folders such that the service's user can pass them, whatever the umask."""
    for path in (PREFIX, BUNDLE_ROOT, os.path.dirname(LAUNCHER)):
        os.makedirs(host.path(path), exist_ok=True)
        if os.stat(host.path(path)).st_mode & 0o755 != 0o755:
            os.chmod(host.path(path), 0o755)  # noqa: S103


def sync_folder(host: Host, path: str) -> None:
    """fsync a folder: the names in it survive a pulled plug."""
    handle = os.open(host.path(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _exclusive(host: Host) -> Iterator[None]:
    """One run at a time on a host; the lock ends with the process that holds it."""
    os.makedirs(host.path("/run"), exist_ok=True)
    path = host.path("/run/lemonade-deploy-bundle.lock")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_WAIT
        while not _locked(handle):
            if time.monotonic() > deadline:
                raise Refused(
                    f"Another run has been laying down a bundle on this host for {LOCK_WAIT:.0f} s.",
                    "Wait for it, or end it (see `ps`), then run the same command again.",
                )
            time.sleep(0.2)  # flock has no time limit of its own
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
