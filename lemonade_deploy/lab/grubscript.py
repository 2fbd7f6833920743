# SPDX-License-Identifier: Apache-2.0
"""GRUB's script language, as far as grub.cfg files use it: words, blocks and conditions.

Parses text into a tree; grubmenu.py runs it. Not covered: loops, arithmetic, positional
parameters of functions. Grammar: grub-core/script/parser.y.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# A word is a list of pieces; a piece is (text, expand variables?).
Word = tuple[tuple[str, bool], ...]

_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r]|\\\n)+)|(?P<comment>\#[^\n]*)|(?P<end>\n|;)|(?P<brace>[{}](?=\s|;|$))
      |(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|\$\{[^}]*\}|[^\s;'"\\])+)""",
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|((?:\\.|[^'"])+)""", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([^}]*)\}|([A-Za-z_][A-Za-z0-9_]*|[0-9?@#*]))")


class GrubSyntaxError(ValueError):
    """grub.cfg has a construct that GRUB (or the lab) does not take."""


@dataclass(frozen=True)
class Command:
    """Words, and for menuentry, submenu and function the block that follows."""

    words: tuple[Word, ...]
    block: tuple[Statement, ...] | None = None


@dataclass(frozen=True)
class If:
    """Branches of (condition, body) and what ``else`` holds."""

    branches: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...] = field(default=())


Statement = Command | If


def expand(word: Word, variables: Mapping[str, str]) -> str:
    """The word's text with its variables put in."""
    return "".join(
        _VARIABLE.sub(lambda match: variables.get(match[1] or match[2] or "", ""), text) if live else text
        for text, live in word
    )


def _word(text: str) -> Word:
    pieces = []
    for single, double, bare in _PIECE.findall(text):
        if bare:
            pieces.append((re.sub(r"\\(.)", r"\1", bare), True))
        elif double:
            pieces.append((re.sub(r'\\([$"\\\n])', r"\1", double), True))
        else:
            pieces.append((single, False))
    return tuple(pieces)


def parse(text: str) -> tuple[Statement, ...]:
    """The statements of a script; GrubSyntaxError with the line's number."""
    reader = _Reader(text)
    statements = reader.statements(())
    if reader.peek() is not None:
        raise GrubSyntaxError(f"line {reader.line()}: unexpected {reader.peek()!r}")
    return statements


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str, int]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise GrubSyntaxError(f"line {text.count(chr(10), 0, position) + 1}: cannot be read")
            kind = match.lastgroup or ""
            if kind not in ("space", "comment"):
                self.tokens.append((kind, match[0], text.count("\n", 0, position) + 1))
            position = match.end()
        self.at = 0

    def peek(self) -> str | None:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else None

    def line(self) -> int:
        return self.tokens[min(self.at, len(self.tokens) - 1)][2]

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1][1]

    def skip_ends(self) -> None:
        while self.at < len(self.tokens) and self.tokens[self.at][0] == "end":
            self.at += 1

    def statements(self, until: tuple[str, ...]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        while True:
            self.skip_ends()
            word = self.peek()
            if word is None or word in until:
                if word is None and until:
                    raise GrubSyntaxError(f"the end comes before {' or '.join(until)}")
                return tuple(found)
            found.append(self.condition() if word == "if" else self.command())

    def condition(self) -> If:
        self.take()
        branches = []
        while True:
            test = self.statements(("then",))
            self.take()
            branches.append((test, self.statements(("elif", "else", "fi"))))
            word = self.take()
            if word == "fi":
                return If(tuple(branches))
            if word == "else":
                otherwise = self.statements(("fi",))
                self.take()
                return If(tuple(branches), otherwise)

    def command(self) -> Command:
        words: list[Word] = []
        while self.at < len(self.tokens) and self.tokens[self.at][0] == "word":
            words.append(_word(self.take()))
        if self.peek() == "{":
            self.take()
            block = self.statements(("}",))
            self.take()
            return Command(tuple(words), block)
        if not words:
            raise GrubSyntaxError(f"line {self.line()}: unexpected {self.peek()!r}")
        return Command(tuple(words))
