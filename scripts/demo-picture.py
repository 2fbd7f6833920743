#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw what a terminal shows of a command into an SVG: the README's picture is a real run.

usage: demo-picture.py OUT.svg COMMAND...      (needs rich, and pyte: pip install pyte)
"""

from __future__ import annotations

import os
import pty
import sys
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


def line_of(cells: dict[int, pyte.screens.Char]) -> Text:
    """One line of the screen with its colours."""
    text = Text()
    for column in range(COLUMNS):
        cell = cells[column]
        colour = NAMES.get(cell.fg, cell.fg)
        text.append(cell.data, Style(color=colour, bold=cell.bold, italic=cell.italics))
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
        console.save_svg(out, title=f"# {' '.join(Path(word).name for word in argv)}")


if __name__ == "__main__":
    main()
