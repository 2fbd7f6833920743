# SPDX-License-Identifier: Apache-2.0
"""Trust on first use: read every asset of a release once, and note what was read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

from lemonade_deploy.depot import discover
from lemonade_deploy.domain.assets import asset_url
from lemonade_deploy.domain.fetch import Download, FetchError, Policy
from lemonade_deploy.domain.gunzip import ArchiveError, inflate
from lemonade_deploy.domain.lock import Asset, Release, TreeInfo
from lemonade_deploy.domain.pump import ahead
from lemonade_deploy.domain.unpack import Nowhere, unpack

QUEUE = 8  # chunks between two stages

# (asset's name, bytes of it so far, its size or None)
Progress = Callable[[str, int, int | None], None]


class Changed(Exception):
    """A tag that is locked has other bytes now; the message shows both sides."""


def lock_release(
    base_url: str,
    tag: str,
    family: str,
    progress: Progress = lambda _name, _done, _size: None,
    policy: Policy | None = None,
) -> Release:
    """Stream a release's assets through sha256 and its tree through the manifest; keeps nothing.

    Raises FetchError (not there, unreachable, or no archive that a host would unpack).
    """
    found: list[Asset] = []
    source = _chunks(base_url, tag, progress, policy, found)
    with closing(ahead(inflate(ahead(source, QUEUE)), QUEUE)) as chunks:
        try:
            manifest = unpack(chunks, Nowhere())
        except ArchiveError as error:
            raise FetchError(f"{base_url}: the archive of release {tag} is unusable: {error}.") from error
    if not manifest.size:
        raise FetchError(f"{base_url}: the archive of release {tag} holds no file with any content.")
    tree = TreeInfo(manifest.digest(), manifest.size, manifest.files)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Release(tag, family, tuple(found), tree, now, base_url)


def _chunks(
    base_url: str, tag: str, progress: Progress, policy: Policy | None, found: list[Asset]
) -> Generator[bytes, None, None]:
    for name, download in discover.downloads(base_url, tag, policy):
        digest, size = hashlib.sha256(), 0
        for chunk in _read(download):
            digest.update(chunk)
            size += len(chunk)
            progress(name, size, download.size)
            yield chunk
        found.append(Asset(name, size, digest.hexdigest(), asset_url(base_url, tag, name)))


def _read(download: Download) -> Generator[bytes, None, None]:
    yield from download.chunks()


def merge(known: dict[str, Release], new: Release) -> dict[str, Release]:
    """*known* with *new*; an unchanged release keeps its old entry. Raises Changed."""
    old = known.get(new.tag)
    if old is None:
        return {**known, new.tag: new}
    differences = _differences(old, new)
    if differences:
        raise Changed(
            f"release {new.tag} is not what was locked on {old.locked_at or 'an unknown day'} from "
            f"{old.source or 'an unknown place'}:\n" + "\n".join(f"  {line}" for line in differences)
        )
    kept = old if old.tree else new
    # Verdict and evidence may come later than the bytes; what is there outlives who does not answer.
    verdict = new.qualification or old.qualification
    seen = {asset.name: asset.upstream for asset in new.assets}
    assets = tuple(replace(a, upstream=seen.get(a.name, "") or a.upstream) for a in kept.assets)
    return {**known, new.tag: replace(kept, qualification=verdict, assets=assets)}


def _differences(old: Release, new: Release) -> list[str]:
    was = {asset.name: asset for asset in old.assets}
    now = {asset.name: asset for asset in new.assets}
    lines = [
        f"{name}: locked {_show(was.get(name))}, now {_show(now.get(name))}"
        for name in sorted({*was, *now})
        if _show(was.get(name)) != _show(now.get(name))
    ]
    if old.tree and new.tree and old.tree.digest != new.tree.digest:
        lines.append(f"unpacked tree: locked {old.tree.digest}, now {new.tree.digest}")
    return lines


def _show(asset: Asset | None) -> str:
    return f"sha256 {asset.sha256} ({asset.size} bytes)" if asset else "absent"
