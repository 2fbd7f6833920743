#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw what a terminal shows of a command into an SVG: the README's picture is a real run.

usage: demo-picture.py OUT.svg COMMAND...      (needs rich, and pyte: pip install pyte)
"""

from __future__ import annotations

import os
import pty
import re
import sys
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, LINES = 120, 34
NAMES = {"brown": "yellow", "default": None}


def run(argv: list[str]) -> pyte.HistoryScreen:
    """Run *argv* on a pseudo-terminal; the screen with all that scrolled off it."""
    screen = pyte.HistoryScreen(COLUMNS, LINES, history=10_000, ratio=1)
    stream = pyte.ByteStream(screen)

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        stream.feed(data)
        return data

    os.environ.update(COLUMNS=str(COLUMNS), LINES=str(LINES), TERM="xterm-256color")
    status = pty.spawn(argv, read)
    if status != 0:
        sys.exit(f"{argv[0]} ended with status {status}")
    return screen


def style_of(cell: pyte.screens.Char) -> Style:
    """Colour and weight of one cell."""
    return Style(color=NAMES.get(cell.fg, cell.fg), bold=cell.bold, italic=cell.italics)


def line_of(cells: dict[int, pyte.screens.Char]) -> Text:
    """One line of the screen with its colours."""
    text = Text()
    for style, group in groupby((cells[column] for column in range(COLUMNS)), style_of):
        text.append("".join(cell.data for cell in group), style)
    text.rstrip()
    return text


def main() -> None:
    """Run, then draw."""
    out, argv = sys.argv[1], sys.argv[2:]
    screen = run(argv)
    lines = [line_of(cells) for cells in screen.history.top]
    lines += [line_of(screen.buffer[row]) for row in range(LINES)]
    while lines and not lines[-1].plain:
        lines.pop()
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        for line in lines:
            console.print(line, no_wrap=True, overflow="crop")
        svg = console.export_svg(title=f"# {' '.join(Path(word).name for word in argv)}")
    # rich would have the reader's browser fetch a font; any monospace one does.
    Path(out).write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
