# SPDX-License-Identifier: Apache-2.0
"""Published figures of other people's machines, shown beside ours. Never mixed with them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_DATA = "data/strix_halo.json"
_WIDE = 0.25  # standard deviation by mean, as in bench_stats: above it a mean says nothing


@dataclass(frozen=True)
class Published:
    """One published line. Rates in tokens/s; None for what the source does not say."""

    checkpoint: str | None
    name: str
    status: str
    mean: float | None
    stddev: float | None
    low: float | None
    high: float | None
    runs: int | None
    load_seconds: float | None
    source: Mapping[str, str]

    @property
    def cells(self) -> tuple[str, str, str, str, str, str]:
        """Rate, deviation, least, most, load time and where it was measured, as the tables show them."""
        if self.mean is None or self.status != "ok":
            return self.status, "-", "-", "-", "-", self.told
        spread = self.stddev is not None and self.stddev > _WIDE * self.mean
        mean = "no steady rate" if spread else f"{self.mean:.1f}"
        load = "-" if self.load_seconds is None else f"{self.load_seconds:.1f} s"
        return mean, _number(self.stddev), _number(self.low), _number(self.high), load, self.told

    @property
    def told(self) -> str:
        """Machine, engine and date."""
        source = self.source
        return f"{source['gfx']}, {source['engine']}, {source['date']}"

    def public(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "published_name": self.name,
            "status": self.status,
            "mean": self.mean,
            "stddev": self.stddev,
            "min": self.low,
            "max": self.high,
            "runs": self.runs,
            "load_seconds": self.load_seconds,
            "engine": self.source["engine"],
            "hardware": self.source["hardware"],
            "method": self.source["method"],
            "date": self.source["date"],
            "url": self.source["url"],
        }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


@cache
def published() -> tuple[Published, ...]:
    """All lines that ship with the kit."""
    data = json.loads(files(__package__).joinpath(_DATA).read_text(encoding="utf-8"))
    return tuple(
        Published(
            row["checkpoint"],
            row["published_name"],
            row["status"],
            row["mean"],
            row["stddev"],
            row["min"],
            row["max"],
            row["runs"],
            row["load_seconds"],
            data["sources"][row["source"]],
        )
        for row in data["rows"]
    )


def of(checkpoint: str) -> list[Published]:
    """The published lines of a checkpoint; only the very same one, no relatives."""
    bare = checkpoint.partition(":")[0].lower()
    return [line for line in published() if line.checkpoint and line.checkpoint.lower() == bare]


COLUMNS = ("Model", "Published tok/s", "±StdDev", "Min", "Max", "Load Time", "Ours", "Where")


def rows(models: Sequence[Mapping[str, Any]], ours: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Lines of a table for *models*; *ours* are our own rates as their table shows them."""
    for model, own in zip(models, ours, strict=True):
        for line in of(str(model["checkpoint"])):
            *figures, where = line.cells
            yield (str(model["model"]), *figures, own, where)


def sources(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each source that :func:`rows` uses."""
    found = {line.source["url"]: line.source for model in models for line in of(str(model["checkpoint"]))}
    return [
        f"{source['title']} ({source['hardware']}, {source['os']}, kernel {source['kernel']}, "
        f"{source['method']}): {url}"
        for url, source in found.items()
    ]
