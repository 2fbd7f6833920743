# SPDX-License-Identifier: Apache-2.0
"""GRUB's environment block: 1024 bytes, ``name=value`` lines, padded with ``#``.

Format: grub-core/lib/envblk.c. A backslash in a value escapes backslash and newline.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SIGNATURE = "# GRUB Environment Block\n"
SIZE = 1024


def parse(block: bytes) -> dict[str, str]:
    """The variables of a block; empty where it has no signature (GRUB refuses it, too)."""
    text = block.decode("utf-8", "surrogateescape")
    if not text.startswith(SIGNATURE):
        return {}
    values: dict[str, str] = {}
    for line in _lines(text[len(SIGNATURE) :]):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values[name] = value
    return values


def _lines(text: str) -> list[str]:
    lines, current, escaped = [], "", False
    for character in text:
        if escaped:
            current, escaped = current + character, False
        elif character == "\\":
            escaped = True
        elif character == "\n":
            lines.append(current)
            current = ""
        else:
            current += character
    return lines


def render(values: Mapping[str, str]) -> bytes:
    """The block that holds *values*; ValueError when they do not fit in 1024 bytes."""
    text = SIGNATURE
    for name, value in values.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\\n")
        text += f"{name}={escaped}\n"
    block = text.encode("utf-8", "surrogateescape")
    if len(block) > SIZE:
        raise ValueError(f"GRUB's environment block holds {SIZE} bytes, {len(block)} are wanted")
    return block.ljust(SIZE, b"#")


def load(path: Path) -> dict[str, str]:
    """The variables of a grubenv file; empty where there is none."""
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return {}
