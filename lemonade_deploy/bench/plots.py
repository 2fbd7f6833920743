# SPDX-License-Identifier: Apache-2.0
"""Plots as inline SVG: colours by CSS variables of the page, no script, nothing fetched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_LEFT, _TOP, _WIDTH, _HEIGHT = 60, 28, 420, 190
_OUTER = f'viewBox="0 0 {_LEFT + _WIDTH + 20} {_TOP + _HEIGHT + 44}" role="img"'


@dataclass(frozen=True)
class Series:
    """A named line: (x, y) pairs."""

    name: str
    points: Sequence[tuple[float, float]]


def ceiling(value: float) -> float:
    """The next of 1, 2, 2.5, 5, 10 × a power of ten: where an axis ends."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * (1 - 1e-9))


def lines(title: str, unit: str, across: str, series: Sequence[Series]) -> str:
    """Lines over a logarithmic x axis of base 2, its ticks at the points; "" where there is none."""
    xs = sorted({x for one in series for x, _y in one.points})
    if not xs:
        return ""
    top = ceiling(max(y for one in series for _x, y in one.points))
    span = math.log2(xs[-1] / xs[0]) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + _WIDTH * math.log2(x / xs[0]) / span, _TOP + _HEIGHT * (1 - y / top)

    parts = [_frame(title, unit, top)]
    for x in xs:
        parts.append(_text(place(x, 0)[0], _TOP + _HEIGHT + 16, f"{x:g}", "middle"))
    parts.append(_text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 34, across, "middle"))
    for number, one in enumerate(series):
        spots = [place(x, y) for x, y in one.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline class="l{number % 4}" points="{path}"/>')
        for (x, y), (at, value) in zip(spots, one.points, strict=True):
            told = escape(f"{one.name}, {at:g} {across}: {value:.2f} {unit}")
            parts.append(_dot(number % 4, x, y, told))
        parts.append(_text(_LEFT + 8 + 120 * number, _TOP + 14, one.name, "start", f"t{number % 4}"))
    return f'<svg {_OUTER} aria-label="{escape(title)}">{"".join(parts)}</svg>'


def strips(title: str, unit: str, samples: Mapping[str, Sequence[float]]) -> str:
    """Every value as a dot, a column for each sample, a bar at the median; "" where there is none."""
    filled = {name: values for name, values in samples.items() if values}
    if not filled:
        return ""
    top = ceiling(max(max(values) for values in filled.values()))
    step = _WIDTH / len(filled)
    parts = [_frame(title, unit, top)]
    for column, (name, values) in enumerate(filled.items()):
        middle = _LEFT + step * (column + 0.5)
        for number, value in enumerate(values):
            x = middle + (number - (len(values) - 1) / 2) * min(9.0, step * 0.6 / len(values))
            y = _TOP + _HEIGHT * (1 - value / top)
            told = escape(f"{name}, run {number + 1}: {value:.2f} {unit}")
            parts.append(_dot(0, x, y, told))
        ordered = sorted(values)
        half = len(ordered) // 2
        median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
        y = _TOP + _HEIGHT * (1 - median / top)
        parts.append(
            f'<line class="median" x1="{middle - 22:.1f}" x2="{middle + 22:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        room = max(6, int(step / 6.5))
        shown = name if len(name) <= room else name[: room - 1] + "…"
        parts.append(_text(middle, _TOP + _HEIGHT + 16, shown, "middle"))
    return f'<svg {_OUTER} aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _frame(title: str, unit: str, top: float) -> str:
    """Title, grid and the numbers of the y axis."""
    parts = [_text(_LEFT, 14, f"{title} ({unit})", "start", "title")]
    for quarter in range(5):
        y = _TOP + _HEIGHT * (1 - quarter / 4)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{top * quarter / 4:g}", "end"))
    return "".join(parts)


def _dot(colour: int, x: float, y: float, told: str) -> str:
    """A point that tells its value under the mouse. *told* is escaped."""
    return f'<circle class="d{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{told}</title></circle>'


def _text(x: float, y: float, text: str, anchor: str, name: str = "") -> str:
    css = f' class="{name}"' if name else ""
    return f'<text{css} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
