# SPDX-License-Identifier: Apache-2.0
"""What upstream's own hardware tests say of a release, where their feed answers.

Source: lemonade-sdk/vllm-rocm, docs/qualification-feed.md (schema_version 1; newest build first;
only gfx1151 has a runner). Its tags lack the ROCm suffix of the release tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lemonade_deploy.domain.fetch import FetchError, Policy, fetch_text
from lemonade_deploy.domain.lock import NO_RECORD, QUALIFIED, UNQUALIFIED
from lemonade_deploy.domain.releases import split

FEED = "https://raw.githubusercontent.com/lemonade-sdk/vllm-rocm/qualification-data/qualification/index.json"
# A help, not a need: who has no way to it waits a few seconds at most.
_POLICY = Policy(attempts=2, timeout=10)
_LIMIT = 16 << 20  # bytes
_ROCM = re.compile(r"-rocm(\d[\w.]*)$")


def ask(tag: str, url: str = FEED, policy: Policy = _POLICY) -> tuple[str, str]:
    """(one of lock's words, "" where the feed does not answer; a sentence for people)."""
    try:
        text = fetch_text(url, policy, _LIMIT)
        rows = json.loads(text)["builds"] if text is not None else None
    except (FetchError, ValueError, KeyError, TypeError) as error:
        return "", f"Upstream's qualification feed does not answer: {getattr(error, 'found', error)}"
    if not isinstance(rows, list):
        return "", f"Upstream's qualification feed is not at {url}."
    row = next((row for row in rows if isinstance(row, Mapping) and _is(row, tag)), None)
    if row is None:
        return NO_RECORD, "Upstream's qualification feed has no record of it, which says nothing either way."
    tests = row.get("tests") or {}
    score = f"{tests.get('passed')} of {tests.get('total')} tests, {row.get('generated_at')}"
    if row.get("qualified") is True:
        return QUALIFIED, f"Upstream's qualification feed calls it qualified ({score})."
    return UNQUALIFIED, f"Upstream's qualification feed calls it UNQUALIFIED ({score})."


def _is(row: Mapping[str, Any], tag: str) -> bool:
    base, family = split(tag)
    found = _ROCM.search(base)
    if row.get("gfx_target") != family or (found and row.get("rocm_version", found[1]) != found[1]):
        return False
    return row.get("tag") in (tag, f"{_ROCM.sub('', base)}-{family}")
