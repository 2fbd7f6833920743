# SPDX-License-Identifier: Apache-2.0
"""Secrets out of lines that are shown: tokens by their form, values by their name."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
_FORMS = (
    re.compile(r"\b(?:hf|ghp|gho|github_pat|glpat|sk|xox[bap])[_-][A-Za-z0-9_-]{8,}"),
    re.compile(r"(?<=Bearer )[^\s'\",]+", re.IGNORECASE),
    re.compile(r"(?<=Basic )[A-Za-z0-9+/=]{8,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),  # JSON Web Token
)
# api_key=…, "token": "…", --api-key … ; the name stays, so that one sees what was meant.
_IN_ADDRESSES = (
    re.compile(r"(?<=://)[^/\s'\"]+(?=@)"),  # user:password or a token alone
    # A password may hold a slash; a port before a path is none.
    re.compile(r"(?<=://)[^/\s:@'\"]+:(?!\d{1,5}/)[^\s@'\"]*(?=@)"),
)
_NAMED = re.compile(
    r"((?:[\w-]*(?:api[_-]?key|secret|password|passwd)|[\w-]*(?<![A-Za-z])token(?![A-Za-z]))"
    r"['\"]?\s*(?:[=:]|(?<=key|ret|ord|swd|ken) )\s*[\['\"]{0,2})([^\s'\",}&]{4,})",
    re.IGNORECASE,
)


def addresses(text: str) -> str:
    """*text* without the passwords and tokens that stand in addresses."""
    for form in _IN_ADDRESSES:
        text = form.sub(HIDDEN, text)
    return text


def scrub(text: str, known: Iterable[str] = ()) -> str:
    """*text* without anything that looks like a secret, nor any of the *known* ones."""
    for secret in known:
        if len(secret) >= 4:
            text = text.replace(secret, HIDDEN)
    text = addresses(text)
    for form in _FORMS:
        text = form.sub(HIDDEN, text)
    return _NAMED.sub(lambda hit: hit[1] + HIDDEN, text)
