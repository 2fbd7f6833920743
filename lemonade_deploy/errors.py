# SPDX-License-Identifier: Apache-2.0
"""A mistake in what the user gave, told in the user's words and never as a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """Wrong usage or input: exit 64. ``found`` names what is wrong, ``remedy`` what to do."""

    def __init__(self, found: str, remedy: str = "") -> None:
        self.found = found
        self.remedy = remedy
        super().__init__(f"{found}\n{remedy}".strip())


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest of *known*, or nothing where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else ""
