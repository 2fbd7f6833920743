# SPDX-License-Identifier: Apache-2.0
"""What modprobe.d files say that keeps amdgpu from loading, read as kmod reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from .host import Host

# modprobe.d(5); a file name in an earlier folder hides the same name in a later one.
FOLDERS = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
CMDLINE = "/proc/cmdline"
# The one file that AMD's scripts write: a failed build leaves its line behind, and the kit lifts it.
AMD_LEFTOVER = "/etc/modprobe.d/blacklist-amdgpu.conf"
_MODULE = "amdgpu"
# The blanks of kmod's strtok; a carriage return is part of the word, and makes it another one.
_BLANKS = re.compile(r"[ \t]+")
# An install command that loads the module itself, past its own line.
_LOADS = re.compile(r"\bmodprobe\b.*\s(-i|--ignore-install)\b.*\bamdgpu\b|\binsmod\b.*\bamdgpu\b")


class Blacklisted(NamedTuple):
    """A line that keeps amdgpu from loading: its file, its number (from 1) and its text.

    ``left_over``: it is the one AMD's scripts leave, which the driver layer takes away. All others
    are somebody's wish.
    """

    path: str
    line: int
    text: str
    left_over: bool = False


class Line(NamedTuple):
    """A logical line: physical ones ``first`` to ``last`` (from 1), joined where a backslash ends one."""

    first: int
    last: int
    text: str

    @property
    def words(self) -> list[str]:
        """Its words; none for a comment."""
        return [] if self.text.startswith("#") else [word for word in _BLANKS.split(self.text) if word]


def lines(text: str) -> Iterator[Line]:
    """The logical lines of a modprobe.d file. A backslash is dropped, and a line end after it as well.

    That holds for comments too: one that ends with a backslash takes the next line along.
    """
    first = number = 1
    joined = ""
    for physical in text.split("\n"):
        # An odd number of backslashes at the end: the last one quotes the line end.
        ends = (len(physical) - len(physical.rstrip("\\"))) % 2 == 1
        joined += re.sub(r"\\(.)", r"\1", physical[:-1] if ends else physical)
        if not ends:
            yield Line(first, number, joined)
            first, joined = number + 1, ""
        number += 1
    if joined:
        yield Line(first, number - 1, joined)


def is_blacklist(line: Line) -> bool:
    """Whether a line is ``blacklist amdgpu``; kmod reads no further word of it."""
    return line.words[:2] == ["blacklist", _MODULE]


def _blocks(line: Line) -> bool:
    words = line.words
    if len(words) < 3:
        return is_blacklist(line)
    if words[0] == "install" and words[1] == _MODULE:
        return not _LOADS.search(" ".join(words[2:]))
    # "off" is no module: the name leads nowhere.
    return is_blacklist(line) or (
        words[0] == "alias" and fnmatchcase(_MODULE, words[1]) and words[2] == "off"
    )


def without_blacklist(text: str) -> str:
    """*text* of a modprobe.d file without ``blacklist amdgpu``; other lines stay as they are."""
    gone = {
        number for line in lines(text) if is_blacklist(line) for number in range(line.first, line.last + 1)
    }
    # Line ends are \n alone, as for kmod.
    physical = re.findall(r"[^\n]*\n|[^\n]+", text)
    return "".join(line for number, line in enumerate(physical, 1) if number not in gone)


def _goes(path: str, text: str) -> bool:
    """Whether the driver layer will remove the whole file."""
    rest = without_blacklist(text)
    return path == AMD_LEFTOVER and rest != text and not rest.strip()


def _files(host: Host) -> Iterator[tuple[str, str]]:
    """Path and text of every file that kmod reads."""
    seen: set[str] = set()
    for folder in FOLDERS:
        for name in host.listdir(folder):
            path = f"{folder}/{name}"
            if not name.endswith(".conf") or name in seen:
                continue
            text = (host.read_bytes(path) or b"").decode("utf-8", "surrogateescape")
            if not _goes(path, text):  # a file that will be gone hides nothing
                seen.add(name)
            yield path, text


def blacklists(host: Host) -> list[Blacklisted]:
    """Lines of modprobe.d files that keep amdgpu from loading."""
    found = []
    for path, text in _files(host):
        for line in lines(text):
            if _blocks(line):
                own = path == AMD_LEFTOVER and is_blacklist(line)
                found.append(Blacklisted(path, line.first, line.text.strip(), own))
    return found


class Option(NamedTuple):
    """A line ``options MODULE …`` for the driver: its file, its number (from 1), its text.

    ``effect`` says what stands in the driver's way, "" where nothing does; ``blocks``: with it the
    driver does not run.
    """

    path: str
    line: int
    text: str
    effect: str = ""
    blocks: bool = False


_OPTION_MODULES = ("amdgpu", "amdkcl", "amdttm", "amd_sched", "ttm")
_TRAPS = {
    "cwsr_enable=0": ("compute wave save/restore is off: it hides the bug and is no fix", False),
    "modeset=0": ("amdgpu does not set up its hardware", True),
}


def options(host: Host) -> list[Option]:
    """Options for amdgpu and what it is made of. ``amdttm`` and ``amdkcl`` are modules of DKMS's only."""
    found = []
    for path, text in _files(host):
        for line in lines(text):
            words = line.words
            if len(words) < 3 or words[0] != "options" or words[1].replace("-", "_") not in _OPTION_MODULES:
                continue
            traps = [_TRAPS[word] for word in words[2:] if words[1] == _MODULE and word in _TRAPS]
            effect = "; ".join(what for what, _blocks in traps)
            blocks = any(blocks for _what, blocks in traps)
            found.append(Option(path, line.first, line.text.strip(), effect, blocks))
    return found


def read_command_line(host: Host) -> str:
    """The running kernel's command line."""
    return host.value(CMDLINE) or ""
