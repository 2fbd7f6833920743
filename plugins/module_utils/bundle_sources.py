# SPDX-License-Identifier: Apache-2.0
"""Where a release may come from, in the order in which the places are tried: depot, mirrors, upstream.

A depot sends independent zstd chunks, which are compared before they are unpacked; nothing is
kept of them. Every other place, and a depot whose chunks cannot be used, sends the locked assets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from . import depot_index, unzstd
from .assets import asset_url
from .depot_index import BadIndex, Chunk, Index
from .fetch import Download, FetchError, Policy, fetch_text
from .lock import Release
from .module import Refused
from .pump import ahead

KNOCK = 10.0  # s that a place which is not the last one has for its first answer
KINDS = ("depot", "mirrors", "upstream")


@dataclass(frozen=True)
class Place:
    """A server; ``url`` is what a tag is appended to."""

    kind: str
    url: str
    token: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.url}"


def places(
    order: Sequence[str], upstream: str, mirrors: Sequence[str] = (), depot: str = "", token: str = ""
) -> tuple[Place, ...]:
    """The places by policy. Raises Refused where the policy leaves none."""
    by_kind = {
        "depot": [Place("depot", depot, token)] if depot else [],
        "mirrors": [Place("mirror", url) for url in mirrors],
        "upstream": [Place("upstream", upstream)],
    }
    chosen = tuple(place for kind in order for place in by_kind[kind])
    if not chosen:
        raise Refused(
            f"vllm_rocm_sources ({', '.join(order) or 'empty'}) leaves no place to fetch from.",
            "Set vllm_rocm_depot_url or vllm_rocm_mirrors, or add `upstream`.",
        )
    return chosen


def knock(release: Release, place: Place, policy: Policy) -> None:
    """Raise FetchError soon where *place* does not answer or lacks the release.

    For places that another one stands in for: a full wait (minutes for a host that drops packets) is
    for the last one.
    """
    hasty = replace(policy, attempts=min(policy.attempts, 2), timeout=min(policy.timeout, KNOCK))
    url = asset_url(place.url, release.tag, release.assets[0].name)
    if not Download(url, policy=hasty, token=place.token).exists():
        raise FetchError(f"{url}: HTTP 404 Not Found.", status=404)


class DepotChunks:
    """The chunks of a release in a depot. ``fetched`` and ``retries`` count as in Source."""

    def __init__(self, release: Release, place: Place, policy: Policy) -> None:
        self.fetched = 0
        self.retries = 0
        self._release, self._place, self._policy = release, place, policy

    def index(self) -> Index | str:
        """The index, or why the assets must do. Raises FetchError where the depot does not answer."""
        if self._release.tree is None:
            return "the lock file has no digest of the tree"
        if not unzstd.available():
            return "this host has no libzstd"
        text = fetch_text(self._url(depot_index.NAME), self._policy, depot_index.LIMIT, self._place.token)
        if text is None:
            return "the depot has no chunks of it"
        try:
            return depot_index.parse(text, self._release)
        except BadIndex as error:
            return str(error)

    def tar(self, index: Index, start: int = 0) -> Generator[bytes, None, None]:
        """The tar archive from its byte *start* on; chunks before it are not fetched.

        Raises FetchError, ArchiveError.
        """
        first, skip = divmod(start, index.plain)
        with closing(ahead(self._frames(index, first), 1)) as frames:
            yield from without(skip, (data for frame in frames for data in unzstd.unzstd(frame, index.plain)))

    def _frames(self, index: Index, first: int) -> Generator[bytes, None, None]:
        for chunk in index.chunks[first:]:
            data = self._fetch(chunk)
            got = hashlib.sha256(data).hexdigest()
            if got != chunk.sha256:
                self.retries += 1
                data = self._fetch(chunk)
                got = hashlib.sha256(data).hexdigest()
            if got != chunk.sha256:
                raise FetchError(
                    f"{self._url(chunk.name)}: expected sha256 {chunk.sha256}, got {got}.",
                    "The depot is damaged: run `lemonade-deploy depot fetch` again.",
                )
            yield data

    def _fetch(self, chunk: Chunk) -> bytes:
        download = Download(self._url(chunk.name), chunk.size, self._policy, self._place.token, kept=True)
        data = b"".join(download.chunks())
        self.fetched += len(data)
        self.retries += download.retries
        return data

    def _url(self, name: str) -> str:
        return asset_url(self._place.url, self._release.tag, name)


def without(skip: int, pieces: Iterable[bytes]) -> Generator[bytes, None, None]:
    """*pieces* but for their first *skip* bytes."""
    for piece in pieces:
        if skip < len(piece):
            yield piece[skip:] if skip else piece
        skip = max(0, skip - len(piece))
