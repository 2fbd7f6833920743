# SPDX-License-Identifier: Apache-2.0
"""What GitHub itself says of a release's assets: a digest each, where its API gives one.

Source: GitHub REST API, `GET /repos/{owner}/{repo}/releases/tags/{tag}`, `assets[].digest` (`sha256:…`;
null for assets that were uploaded before mid-2025). A second witness beside the bytes that came over
the CDN: kept in the lock as evidence, never in place of what was read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote

from lemonade_deploy.domain.fetch import FetchError, Policy, fetch_text
from lemonade_deploy.domain.lock import Release

API = "https://api.github.com/repos/lemonade-sdk/vllm-rocm"
# Evidence, not a need: who has no way to it waits a few seconds at most.
_POLICY = Policy(attempts=2, timeout=10)
_LIMIT = 16 << 20  # bytes
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def digests(tag: str, api: str = API, policy: Policy = _POLICY) -> tuple[dict[str, str], str]:
    """(sha256 by asset name, where the API gives one; a sentence for people)."""
    url = f"{api.rstrip('/')}/releases/tags/{quote(tag, safe='')}"
    try:
        text = fetch_text(url, policy, _LIMIT)
        if text is None:
            return {}, f"GitHub's API knows no release {tag}; no digest of GitHub's is kept."
        listed = json.loads(text)["assets"]
        found = {
            str(asset["name"]): match[1]
            for asset in listed
            if (match := _DIGEST.fullmatch(str(asset.get("digest") or "")))
        }
    except (FetchError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, f"GitHub's API does not answer, no digest of it is kept: {getattr(error, 'found', error)}"
    if not found:
        return {}, "GitHub's API gives no digests for this release."
    return found, f"GitHub's API gives digests for {len(found)} of its {len(listed)} file(s)."


def compared(release: Release, told: Mapping[str, str]) -> Release:
    """The release with GitHub's digests as evidence.

    Raises FetchError where GitHub says another digest than that of the bytes that were read.
    """
    wrong = [
        f"{asset.name}: read sha256 {asset.sha256}, GitHub's API says sha256 {told[asset.name]}"
        for asset in release.assets
        if told.get(asset.name, asset.sha256) != asset.sha256
    ]
    if wrong:
        raise FetchError(
            f"Release {release.tag}: what was sent is not what GitHub has.\n"
            + "\n".join(f"  {line}" for line in wrong),
            "Nothing was locked. Either the transfer was tampered with or damaged, or the release was "
            "replaced while it was read: lock it again, over another network if it stays.",
        )
    assets = tuple(replace(asset, upstream=told.get(asset.name, "")) for asset in release.assets)
    return replace(release, assets=assets)
