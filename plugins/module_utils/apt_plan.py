# SPDX-License-Identifier: Apache-2.0
"""Texts that go into and come out of apt, without running it.

Only interfaces that apt keeps stable are read: the Inst/Remv lines of ``apt-get -s``
(apt-get(8)), the lines of ``--print-uris``, and Debian control stanzas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .apt_formats import parse
from .apt_sources import is_amd

SOURCE_LIST = "/etc/apt/sources.list"
SOURCE_PARTS = "/etc/apt/sources.list.d"
PREFERENCES = "/etc/apt/preferences"
PREFERENCE_PARTS = "/etc/apt/preferences.d"

# apt reads only names of these characters, and only with these endings (apt_preferences(5),
# sources.list(5)); *.save, *.dpkg-old and the like are not sources.
_SOURCE_NAME = re.compile(r"[A-Za-z0-9_.-]+\.(list|sources)")
_PREFERENCE_NAME = re.compile(r"[A-Za-z0-9_-]+(\.pref)?|[A-Za-z0-9_.-]+\.pref")


@dataclass(frozen=True)
class Candidate:
    """The version apt would install. ``uri`` is "" where it stands in no repository (any more)."""

    name: str
    version: str
    uri: str
    depends: str


@dataclass(frozen=True)
class Simulation:
    """What ``apt-get -s`` would do: package names, without architecture."""

    install: tuple[str, ...] = field(default=())
    remove: tuple[str, ...] = field(default=())


def is_source_name(name: str) -> bool:
    """Whether apt reads this file of sources.list.d."""
    return bool(_SOURCE_NAME.fullmatch(name))


def is_preference_name(name: str) -> bool:
    """Whether apt reads this file of preferences.d."""
    return bool(_PREFERENCE_NAME.fullmatch(name))


def without_amd(path: str, text: str) -> str:
    """*text* of a source file without the lines or stanzas that name an AMD repository.

    A planning apt must not fail because AMD's half of the sources is what is broken.
    """
    amd = [entry for entry in parse(path, text) if is_amd(entry)]
    deb822 = path.endswith(".sources")
    pieces = re.split(r"(\n[ \t]*\n)", text) if deb822 else text.splitlines(keepends=True)
    kept, position = [], 0
    for piece in pieces:
        end = position + len(piece)
        if not any(position <= entry.start < end for entry in amd):
            kept.append(piece)
        position = end
    return "".join(kept)


def parse_simulation(text: str) -> Simulation:
    """Inst and Remv (Purg with --purge) lines of ``apt-get -s``."""
    lines = re.findall(r"^(Inst|Remv|Purg) ([^\s:]+)", text, re.MULTILINE)
    return Simulation(
        tuple(sorted({name for verb, name in lines if verb == "Inst"})),
        tuple(sorted({name for verb, name in lines if verb != "Inst"})),
    )


def parse_uris(text: str) -> dict[str, str]:
    """File name → URI of ``apt-get --print-uris``."""
    return {name: uri for uri, name in re.findall(r"^'([^']+)' (\S+)", text, re.MULTILINE)}


def parse_stanzas(text: str) -> list[dict[str, str]]:
    """Debian control stanzas; continuation lines are dropped (none of the fields used has any)."""
    stanzas = []
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): *(.*)$", block, re.MULTILINE))
        if "Package" in fields:
            stanzas.append(fields)
    return stanzas


def archive_name(package: str, version: str, architecture: str) -> str:
    """File name apt gives a downloaded package (``:`` in the epoch is quoted)."""
    return f"{package}_{version.replace(':', '%3a')}_{architecture}.deb"


def errors(text: str) -> list[str]:
    """The ``E:`` and ``W:`` lines of apt, to show to people."""
    return [line.strip() for line in text.splitlines() if line.startswith(("E: ", "W: "))]
