# SPDX-License-Identifier: Apache-2.0
"""What headers of an answer hold, whatever a server writes there."""

from __future__ import annotations

import email.utils
import time


def digits(value: str) -> int | None:
    """A header's number. str.isdigit alone holds for ² too; int() refuses that, and very long ones."""
    value = value.strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 18 else None


def retry_after(value: str) -> float | None:
    """Seconds of a Retry-After header, which holds a number or a date."""
    seconds = digits(value)
    if seconds is not None:
        return float(seconds)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None
