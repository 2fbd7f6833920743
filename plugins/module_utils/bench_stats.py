# SPDX-License-Identifier: Apache-2.0
"""Numbers of a sample, and what is odd about it: outliers, two peaks, a wide spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

# A published table shows 25.1 ± 26.0 tokens/s for runs between 2.5 and 47.7: that mean says nothing.
_APART = 0.10  # of the median: nearer groups are the same to a user
_CLEAR = 3.0  # the gap between two groups, in ranges of the wider one
_MODIFIED_Z = 3.5  # Iglewicz and Hoaglin 1993
_FAR = 0.05  # of the median: an outlier nearer than this is noise of a very even sample
_WIDE = 0.25  # standard deviation by mean


def describe(values: Sequence[float]) -> dict[str, Any] | None:
    """Mean, sample standard deviation (None for one value), median, min, max, flags; None for no values.

    ``outliers`` are positions in *values*; ``groups`` two lists of positions where there are two peaks.
    """
    if not values:
        return None
    groups = two_peaks(values)
    far = [] if groups else outliers(values)
    mean = statistics.fmean(values)
    deviation = statistics.stdev(values) if len(values) > 1 else None
    flags = [name for name, found in (("bimodal", groups), ("outliers", far)) if found]
    if not flags and deviation is not None and mean > 0 and deviation > _WIDE * mean:
        flags.append("unstable")
    return {
        "count": len(values),
        "mean": mean,
        "stddev": deviation,
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "flags": flags,
        "outliers": far,
        "groups": groups,
    }


def two_peaks(values: Sequence[float]) -> list[list[int]]:
    """The positions of the lower and of the upper group, or [] where there is but one peak.

    Each group holds two values at least: a single one far off is an outlier.
    """
    order = sorted(range(len(values)), key=lambda position: values[position])
    cuts = range(2, len(order) - 1)
    if not cuts:
        return []
    cut = max(cuts, key=lambda at: values[order[at]] - values[order[at - 1]])
    low, high = order[:cut], order[cut:]
    gap = values[high[0]] - values[low[-1]]
    widest = max(values[low[-1]] - values[low[0]], values[high[-1]] - values[high[0]])
    clear = gap > _CLEAR * widest and gap > _APART * statistics.median(values)
    return [sorted(low), sorted(high)] if clear else []


def outliers(values: Sequence[float]) -> list[int]:
    """Positions far from the median, measured in median absolute deviations; needs four values."""
    if len(values) < 4:
        return []
    middle = statistics.median(values)
    distances = [abs(value - middle) for value in values]
    limit = max(statistics.median(distances) * _MODIFIED_Z / 0.6745, _FAR * abs(middle))
    return [position for position, distance in enumerate(distances) if distance > limit]


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile: always one of the values. Raises ValueError for none."""
    if not values:
        raise ValueError("no values")
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


def shown(summary: Mapping[str, Any], values: Sequence[float]) -> str:
    """The mean as a table may show it: two peaks are named, never averaged, nor is a sample that swings."""
    if summary["groups"]:
        low, high = ([values[position] for position in group] for group in summary["groups"])
        return (
            f"bimodal, see runs: {statistics.fmean(low):.1f} ({len(low)}×), "
            f"{statistics.fmean(high):.1f} ({len(high)}×)"
        )
    if "unstable" in summary["flags"]:
        return "unstable, see runs"
    return f"{summary['mean']:.1f}"
