# SPDX-License-Identifier: Apache-2.0
"""A task that calls its module several times: what the earlier calls made is told when a later one fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def failed_after(made: Sequence[dict[str, str]], result: dict[str, Any]) -> dict[str, Any]:
    """The failed *result* of a call, with what was *made* before it."""
    changes = [*made, *result.get("changes", [])]
    return {**result, "changes": changes, "changed": bool(changes)}
