# SPDX-License-Identifier: Apache-2.0
"""Fill a folder with a release's tree from the first place that can, verified as it streams.

Where the lock knows the tree's digest, a run that was killed or lost its connection goes on with what
is on the disk: whatever the places were, the whole tree is compared in the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from . import bundle_check, bundle_progress, bundle_space, progress
from .bundle_fetch import Source, WrongDigest
from .bundle_progress import Reached
from .bundle_sources import DepotChunks, Place, knock, without
from .fetch import FetchError, Policy
from .gunzip import ArchiveError, inflate
from .host import Host
from .lock import Release
from .manifest import Manifest
from .module import Refused
from .pump import ahead
from .tree_writer import TreeWriter
from .unpack import unpack

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
    """What a run did: bytes over the network, seconds of the two halves, retries, remarks.

    ``resumed``: bytes of the tree that an earlier run had unpacked.
    """

    fetched: int = 0
    retries: int = 0
    lay_down_seconds: float = 0.0
    static_check_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    source: str = ""
    resumed: int = 0

    def public(self) -> dict[str, Any]:
        """The result key ``lay_down``."""
        return {
            "fetched_bytes": self.fetched,
            "retries": self.retries,
            "seconds": round(self.lay_down_seconds, 3),
            "static_check_seconds": round(self.static_check_seconds, 3),
            "source": self.source,
            "resumed_bytes": self.resumed,
        }


@dataclass
class Filling:
    """The folder *staging* on its way to the release's tree. ``lock``: descriptor of the run's lock.

    ``chunked``: whether the place in use sends a depot's chunks.
    """

    host: Host
    order: Order
    staging: str
    stats: Stats
    lock: int
    chunked: bool = False

    @property
    def root(self) -> str:
        """The folder's real path."""
        return self.host.path(self.staging)

    def kept(self) -> int:
        """Bytes of an earlier run that may be used."""
        return kept_bytes(self.host, self.order.release, self.staging)

    def erase(self) -> None:
        """Begin anew."""
        bundle_space.erase(self.root)

    def restore(self) -> tuple[Reached, bundle_progress.Journal]:
        """What of an earlier run is sound. Raises OSError."""
        if not os.path.isdir(self.root) or not self.kept():
            self.erase()
            os.mkdir(self.root)
        os.chmod(self.root, 0o755)  # noqa: S103  the service's user reads it
        return bundle_progress.restore(self.root, self.order.release.archive)


def kept_bytes(host: Host, release: Release, staging: str) -> int:
    """Bytes that the folder holds of the release's tree, as an earlier run has noted them."""
    root = host.path(staging)
    if release.tree is None or not bundle_progress.belongs(root, release.archive):
        return 0
    return bundle_progress.noted_bytes(root)


def fill(filling: Filling) -> Manifest:
    """Fill the folder from the first place that can; the others are remarks.

    Raises Refused, OSError. After a FetchError what is there is sound.
    """
    order, stats = filling.order, filling.stats
    began = time.monotonic()
    failed: list[Refused] = []
    try:
        *others, last = order.sources()
        for place in (*others, last):
            try:
                if place is not last:
                    knock(order.release, place, order.policy)
                manifest = _twice(filling, place)
            except (FetchError, WrongDigest) as error:
                error.remedy = error.remedy or _remedy(place, error)
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
    raise FetchError(f"No place has release {order.release.tag}. {told}", failed[-1].remedy)


def _remedy(place: Place, error: FetchError | WrongDigest) -> str:
    """For what a server says in its own words only."""
    status = error.status if isinstance(error, FetchError) else 0
    if place.kind == "depot" and status in (401, 403):
        return "Compare vllm_rocm_depot_token with the file `token` in the depot's folder."
    if place.kind == "depot" and status == 404:
        return "Run `lemonade-deploy depot fetch` for this release, or correct vllm_rocm_depot_url."
    names = {"depot": "vllm_rocm_depot_url", "mirror": "vllm_rocm_mirrors"}
    return f"Check {names.get(place.kind, 'vllm_rocm_base_url')}, or name other places in vllm_rocm_sources."


def _twice(filling: Filling, place: Place) -> Manifest:
    """One more attempt where an asset arrived damaged."""
    try:
        return _place(filling, place)
    except WrongDigest as wrong:
        filling.stats.notes.append(f"{wrong.asset} arrived with a wrong digest and was fetched once more")
        return _place(filling, place)


def _place(filling: Filling, place: Place) -> Manifest:
    try:
        return _stream(filling, place)
    except ArchiveError as error:
        if filling.chunked:
            raise _from_depot(error, place) from error
        raise


def _opened(filling: Filling, place: Place) -> tuple[Source | DepotChunks, Callable[[int], Archive]]:
    """What counts the bytes, and the tar archive as a stream from a given byte on."""
    release, policy, notes = filling.order.release, filling.order.policy, filling.stats.notes
    filling.chunked = False
    if place.kind == "depot":
        depot = DepotChunks(release, place, policy)
        index = depot.index()
        if not isinstance(index, str):
            filling.chunked = True
            return depot, lambda start: depot.tar(index, start)
        notes.append(f"{place}: the release's own files are used, because {index}")
    cache, remark = bundle_space.cache_folder(filling.host, release, filling.kept())
    notes += [remark] if remark and remark not in notes else []
    source = Source(release, place.url, cache, policy, place.token)
    return source, lambda start: without(start, inflate(ahead(source.chunks(), QUEUE)))


def _stream(filling: Filling, place: Place) -> Manifest:
    """From one place; anew where what was there before turns out not to be of this archive."""
    resumed = filling.kept() > 0
    try:
        return _attempt(filling, place)
    except (ArchiveError, WrongDigest) as error:
        filling.erase()
        if not resumed or isinstance(error, WrongDigest):
            raise
        filling.stats.notes.append(f"what an earlier run left did not fit and was fetched anew ({error})")
        return _attempt(filling, place)


def _attempt(filling: Filling, place: Place) -> Manifest:
    order, stats, root = filling.order, filling.stats, filling.root
    source, opener = _opened(filling, place)
    reached, journal = filling.restore()
    stats.resumed = reached.manifest.size + (reached.part.done if reached.part else 0)
    tree, interval = order.release.tree, sys.getswitchinterval()
    told = progress.bytes_told(
        filling.host, order.release.tag, opener(reached.offset), reached.offset, tree.size if tree else None
    )
    chunks = ahead(told, 1 if isinstance(source, DepotChunks) else QUEUE)
    # Threads that mostly run outside the interpreter's lock: 5 ms until a waiting one gets
    # it would cap the stream at ~200 MiB/s.
    sys.setswitchinterval(0.0005)
    try:
        with TreeWriter(root, (filling.lock,)) as writer:
            manifest = unpack(chunks, writer, tree.size if tree else None, reached, journal)
            writer.close()
        if tree and manifest.digest() != tree.digest:
            raise ArchiveError(
                f"the tree's manifest is {manifest.digest()}, the lock file says {tree.digest}"
            )
        return manifest
    finally:
        sys.setswitchinterval(interval)
        chunks.close()
        journal.close()
        stats.fetched += source.fetched
        stats.retries += source.retries


def _from_depot(error: ArchiveError, place: Place) -> FetchError:
    """Chunks are not locked bytes: what is wrong with them is the depot's fault, not the release's."""
    return FetchError(
        f"{place}: its chunks are not the locked release: {error}.",
        "Remove the release's folder from the depot, then run `lemonade-deploy depot fetch` again.",
    )
