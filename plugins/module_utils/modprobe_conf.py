# SPDX-License-Identifier: Apache-2.0
"""What keeps amdgpu from loading: modprobe.d files and the kernel command line."""

from __future__ import annotations

import re
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
_BLACKLIST = re.compile(r"^\s*(blacklist\s+amdgpu|install\s+amdgpu\s+(/\S*/)?(false|true)\b.*)\s*$")
_LISTS = ("modprobe.blacklist", "module_blacklist", "rd.driver.blacklist")


class Blacklisted(NamedTuple):
    """A line that keeps amdgpu from loading: its file, its number (from 1) and its text."""

    path: str
    line: int
    text: str


class Trap(NamedTuple):
    """A word of the command line that stands in the driver's way, and what it does.

    ``blocks``: with it the driver does not run at all.
    """

    word: str
    effect: str
    blocks: bool


def blacklists(host: Host) -> list[Blacklisted]:
    """Lines of modprobe.d files that keep amdgpu from loading."""
    found = []
    seen: set[str] = set()
    for folder in FOLDERS:
        for name in host.listdir(folder):
            if not name.endswith(".conf") or name in seen:
                continue
            seen.add(name)
            text = host.read(f"{folder}/{name}") or ""
            if "amdgpu" not in text:
                continue
            for number, line in enumerate(text.split("\n"), 1):
                if _BLACKLIST.match(line):
                    found.append(Blacklisted(f"{folder}/{name}", number, line.strip()))
    return found


def _trap(word: str) -> Trap | None:
    name, _sign, value = word.partition("=")
    name = name.replace("-", "_")
    if name == "nomodeset":
        return Trap(word, "no graphics driver sets up its hardware", True)
    if name in _LISTS and "amdgpu" in value.split(","):
        return Trap(word, "amdgpu is not loaded", True)
    if name == "amdgpu.cwsr_enable" and value == "0":
        return Trap(word, "compute wave save/restore is off: it hides the bug and is no fix", False)
    if name == "amdgpu.modeset" and value == "0":
        return Trap(word, "amdgpu does not set up its hardware", True)
    return None


def traps(command_line: str) -> list[Trap]:
    """Words of a kernel command line that stand in the driver's way."""
    found = (_trap(word) for word in command_line.split())
    return [trap for trap in found if trap is not None]


def read_command_line(host: Host) -> str:
    """The running kernel's command line."""
    return host.value(CMDLINE) or ""
