# SPDX-License-Identifier: Apache-2.0
"""Which assets a release has, found by asking for names as Lemonade does (see domain.assets)."""

from __future__ import annotations

from collections.abc import Iterator

from lemonade_deploy.domain import assets
from lemonade_deploy.domain.fetch import Download, FetchError, Policy, fetch_text


def downloads(base_url: str, tag: str, policy: Policy | None = None) -> Iterator[tuple[str, Download]]:
    """(name, download) of each asset in its order; a later one is asked for after the earlier was read.

    Raises FetchError where nothing of that tag is there or the partcount is no number from 1 to 99.
    """

    def at(name: str) -> Download:
        return Download(assets.asset_url(base_url, tag, name), policy=policy)

    url = assets.asset_url(base_url, tag, assets.partcount_name(tag))
    text = fetch_text(url, policy)
    if text is not None:
        count = assets.parse_partcount(text)
        if count is None:
            raise FetchError(f"{url}: expected a number from 1 to {assets.MAX_PARTS}, found {text[:80]!r}.")
        for name in assets.part_names(tag, count):
            yield name, at(name)
        return
    single = at(assets.single_name(tag))
    if single.exists():
        yield assets.single_name(tag), single
        return
    yield from _old_parts(tag, at(assets.old_part_name(tag, 0)), base_url, policy)


def _old_parts(
    tag: str, part: Download, base_url: str, policy: Policy | None
) -> Iterator[tuple[str, Download]]:
    if not part.exists():
        raise FetchError(
            f"{base_url} has no bundle of release {tag}: none of {assets.partcount_name(tag)}, "
            f"{assets.single_name(tag)}, {assets.old_part_name(tag, 0)} is there.",
            "Look up the tag's exact name at the releases of lemonade-sdk/vllm-rocm, and the family's.",
        )
    number = 0
    while part.exists():
        yield assets.old_part_name(tag, number), part
        number += 1
        url = assets.asset_url(base_url, tag, assets.old_part_name(tag, number))
        part = Download(url, policy=policy)
