# SPDX-License-Identifier: Apache-2.0
"""A host's apt sources, and AMD's driver repository among them: found by its path, switched by version.

Only ``…/amdgpu/<version>/ubuntu`` with component ``main`` is the driver's repository. The lines with
``proprietary``, and those of graphics and rocm, carry ROCm's number by design and are left alone.
A mirror is recognised by the same path and keeps its host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .apt_formats import Entry, parse, rewrite
from .host import Host

MAIN_LIST = "/etc/apt/sources.list"
PARTS = "/etc/apt/sources.list.d"

_DRIVER = re.compile(r"^(?P<before>\S*/amdgpu/)(?P<version>latest|\d+(?:\.\d+)*)(?P<after>/ubuntu/?)$")
_AMD = re.compile(r"(^|[/.])repo\.(radeon|amd)\.com(/|$)")

# Suite of AMD's repository for a distribution release. Debian uses Ubuntu's names (AMD's install docs).
SUITES = {
    ("ubuntu", "22.04"): "jammy",
    ("ubuntu", "24.04"): "noble",
    ("ubuntu", "26.04"): "resolute",
    ("debian", "12"): "jammy",
    ("debian", "13"): "noble",
}


def read_text(host: Host, path: str) -> str | None:
    """A source file's text with its line ends and odd bytes kept (surrogateescape)."""
    data = host.read_bytes(path)
    return None if data is None else data.decode("utf-8", "surrogateescape")


def source_paths(host: Host) -> list[str]:
    """The files apt reads: sources.list and *.list, *.sources below sources.list.d.

    Left-overs (.save, .distUpgrade, .dpkg-old …) are none of them.
    """
    names = [name for name in host.listdir(PARTS) if re.fullmatch(r"[A-Za-z0-9_.-]+\.(list|sources)", name)]
    first = [MAIN_LIST] if host.exists(MAIN_LIST) else []
    return first + [f"{PARTS}/{name}" for name in names]


def read_sources(host: Host) -> dict[str, str]:
    """Text of every source file that apt reads, by path."""
    texts = ((path, read_text(host, path)) for path in source_paths(host))
    return {path: text for path, text in texts if text is not None}


def entries(sources: dict[str, str]) -> list[Entry]:
    """All entries of *sources* (what :func:`read_sources` gives)."""
    return [entry for path, text in sources.items() for entry in parse(path, text)]


def version(entry: Entry) -> str | None:
    """Version in the path of a driver repository's URI ("30.30", "latest"), else None."""
    match = _DRIVER.match(entry.uri)
    return match["version"] if match else None


def is_driver(entry: Entry) -> bool:
    """Whether an entry is AMD's driver repository, enabled or not."""
    return version(entry) is not None and "main" in entry.components


def is_amd(entry: Entry) -> bool:
    """Whether an entry names any repository of AMD's (driver, graphics, rocm, proprietary)."""
    return version(entry) is not None or bool(_AMD.search(entry.uri))


def driver_entries(sources: dict[str, str]) -> list[Entry]:
    """Every entry of the driver repository in *sources*, disabled and commented ones included."""
    return [entry for entry in entries(sources) if is_driver(entry)]


def active(found: Iterable[Entry]) -> list[Entry]:
    """Those that apt installs binary packages from."""
    return [entry for entry in found if entry.enabled and entry.type == "deb"]


def with_version(text: str, entry: Entry, new: str) -> str:
    """A file's *text* with the version in *entry*'s URI replaced by *new*, all else byte for byte.

    *entry* must come from this very text. Raises ValueError where it does not.
    """
    return with_versions(text, [entry], new)


def with_versions(text: str, found: Iterable[Entry], new: str) -> str:
    """:func:`with_version` for several entries of one text."""
    places = []
    for entry in found:
        match = _DRIVER.match(entry.uri)
        if match is None or text[entry.start : entry.end] != entry.uri:
            raise ValueError(f"{entry.path}:{entry.line} is not this driver repository entry")
        places.append((entry.start + match.start("version"), entry.start + match.end("version"), new))
    return rewrite(text, places)


def expected_suite(distribution: str, release: str) -> str | None:
    """AMD's suite for a distribution id and version (os-release), or None where it has none."""
    return SUITES.get((distribution, release))


def duplicates(entries: Sequence[Entry]) -> list[Entry]:
    """Active entries that name the driver's repository for an architecture that an earlier one names too."""
    seen: list[Entry] = []
    found: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        for other in seen:
            overlap = set(entry.architectures) & set(other.architectures)
            both = not entry.architectures or not other.architectures or overlap
            # Types and suites of one stanza share a URI; two URIs may share a line.
            if both and (entry.path, entry.start) != (other.path, other.start):
                found.setdefault((other.path, other.start), other)
                found.setdefault((entry.path, entry.start), entry)
        seen.append(entry)
    return list(found.values())
