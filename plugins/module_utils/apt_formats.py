# SPDX-License-Identifier: Apache-2.0
"""The two formats of apt's source files, one-line (*.list) and deb822 (*.sources), without losing a byte.

Entries remember where they stand in the text, so that a rewrite can replace the version of one
repository and leave everything else as it was: comments, order, spacing, line ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_ONE_LINE = re.compile(
    r"^[ \t]*(?P<off>#[# \t]*)?(?P<type>deb(?:-src)?)[ \t]+(?:\[(?P<options>[^\]\r\n]*)\][ \t]*)?"
    r"(?P<uri>[^\s\[\]#]\S*)[ \t]+(?P<suite>[^\s#]\S*)(?P<components>[^#\r\n]*)",
    re.MULTILINE,
)
_FIELD = re.compile(r"^(?P<name>[A-Za-z][A-Za-z0-9-]*)[ \t]*:(?P<value>.*)$")
_OPTION = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_WORD = re.compile(r"\S+")
# What apt's StringToBool takes for false; a word it does not know leaves a stanza enabled.
_OFF = re.compile(r"no|false|without|off|disable|[+-]?0(?:x?0+)?", re.IGNORECASE | re.ASCII)


class Entry(NamedTuple):
    """One (type, URI, suite) of a source file.

    ``start``/``end`` are the URI's place in the file's text; ``line`` counts from 1. ``enabled`` is
    False for a commented line and for a stanza with ``Enabled: no``. ``signed_by`` is a path, a
    fingerprint or, where a deb822 stanza carries the key itself, its text.
    """

    path: str
    line: int
    style: str  # "one-line" or "deb822"
    enabled: bool
    type: str
    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str
    architectures: tuple[str, ...]
    start: int
    end: int
    text: str  # the line, or the stanza's URIs line: what a finding shows
    trusted: bool = False  # trusted=yes: apt asks for no signature


def _line_number(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()


def _options(text: str) -> dict[str, str]:
    # A value may stand in quotes, with blanks in it (apt's ParseQuotedWord).
    pairs = (word[0].partition("=") for word in _OPTION.finditer(text))
    return {name.rstrip("+-").lower(): value.replace('"', "") for name, _sign, value in pairs}


def parse_list(path: str, text: str) -> list[Entry]:
    """Entries of a one-line file; commented ``# deb …`` lines are entries that are not enabled."""
    entries = []
    for match in _ONE_LINE.finditer(text):
        options = _options(match["options"] or "")
        entries.append(
            Entry(
                path=path,
                line=_line_number(text, match.start("uri")),
                style="one-line",
                enabled=match["off"] is None,
                type=match["type"],
                uri=match["uri"],
                suite=match["suite"],
                components=tuple(match["components"].split()),
                signed_by=options.get("signed-by", ""),
                architectures=tuple(filter(None, re.split(r"[,\s]+", options.get("arch", "")))),
                start=match.start("uri"),
                end=match.end("uri"),
                text=_line_at(text, match.start("uri")),
                trusted=options.get("trusted", "").lower() == "yes",
            )
        )
    return entries


def _lines(text: str) -> Iterator[tuple[int, str]]:
    position = 0
    for line in text.split("\n"):
        yield position, line.rstrip("\r")
        position += len(line) + 1


Stanza = dict[str, list[tuple[int, str]]]


def _stanzas(text: str) -> Iterator[Stanza]:
    """deb822 stanzas: field name in lower case -> pieces of its value with their positions."""
    stanza: Stanza = {}
    current: list[tuple[int, str]] = []
    for position, line in _lines(text):
        field = _FIELD.match(line)
        if not line.strip():
            if stanza:
                yield stanza
            stanza, current = {}, []
        elif line.startswith("#"):
            continue
        elif line[0] in " \t":
            current.append((position, line))
        elif field is not None:
            current = [(position + field.start("value"), field["value"])]
            stanza[field["name"].lower()] = current
    if stanza:
        yield stanza


def _words(stanza: Stanza, name: str) -> list[str]:
    return " ".join(piece for _position, piece in stanza.get(name, [])).split()


def _uris(stanza: Stanza) -> Iterator[tuple[int, str]]:
    for position, piece in stanza.get("uris", []):
        for word in _WORD.finditer(piece):
            yield position + word.start(), word[0]


def parse_deb822(path: str, text: str) -> list[Entry]:
    """Entries of a deb822 file: one for each type, URI and suite of each stanza."""
    entries = []
    for stanza in _stanzas(text):
        enabled = not _OFF.fullmatch(" ".join(_words(stanza, "enabled")))
        signed_by = "\n".join(piece.strip() for _position, piece in stanza.get("signed-by", [])).strip()
        for start, uri in _uris(stanza):
            for kind in _words(stanza, "types"):
                for suite in _words(stanza, "suites"):
                    entries.append(
                        Entry(
                            path=path,
                            line=_line_number(text, start),
                            style="deb822",
                            enabled=enabled,
                            type=kind,
                            uri=uri,
                            suite=suite,
                            components=tuple(_words(stanza, "components")),
                            signed_by=signed_by,
                            architectures=tuple(_words(stanza, "architectures")),
                            start=start,
                            end=start + len(uri),
                            text=_line_at(text, start),
                            trusted=_words(stanza, "trusted")[:1] == ["yes"],
                        )
                    )
    return entries


def parse(path: str, text: str) -> list[Entry]:
    """Entries of a source file, by the form its name tells."""
    return parse_deb822(path, text) if path.endswith(".sources") else parse_list(path, text)


def rewrite(text: str, replacements: Iterable[tuple[int, int, str]]) -> str:
    """*text* with each (start, end, new) replaced; nothing else changes."""
    for start, end, new in sorted(set(replacements), reverse=True):
        text = text[:start] + new + text[end:]
    return text
