# SPDX-License-Identifier: Apache-2.0
"""Words of the kernel command line that stand in amdgpu's way: of this boot, and of the next ones."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from . import modprobe_conf
from .host import Host

# Where the next boots' command line is written: grub-mkconfig sources these in this order.
_GRUB = "/etc/default/grub"
_GRUB_PARTS = "/etc/default/grub.d"
_KERNEL_INSTALL = "/etc/kernel/cmdline"
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?(GRUB_CMDLINE_LINUX(?:_DEFAULT)?)(\+?)=(.*)$")
_LISTS = ("modprobe.blacklist", "module_blacklist")


class Trap(NamedTuple):
    """A word of the command line that stands in the driver's way, and what it does.

    ``blocks``: with it the driver does not run at all. ``path`` and ``line`` (from 1): the file that
    brings it, or /proc/cmdline and 0 where none was found. ``running``: this boot has it.
    """

    word: str
    effect: str
    blocks: bool
    path: str = modprobe_conf.CMDLINE
    line: int = 0
    running: bool = True

    @property
    def place(self) -> str:
        """File and line for people."""
        return f"{self.path} line {self.line}" if self.line else self.path


class _Word(NamedTuple):
    path: str
    line: int
    word: str


def _trap(word: str) -> Trap | None:
    name, _sign, value = word.partition("=")
    name = name.replace("-", "_")
    if name == "nomodeset":
        return Trap(word, "no graphics driver sets up its hardware", True)
    if name in _LISTS and "amdgpu" in value.split(","):
        return Trap(word, "amdgpu is not loaded", True)
    if name == "rd.driver.blacklist" and "amdgpu" in value.split(","):
        return Trap(word, "dracut's initramfs does not load amdgpu; it comes later", False)
    if name == "amdgpu.cwsr_enable" and value == "0":
        return Trap(word, "compute wave save/restore is off: it hides the bug and is no fix", False)
    if name == "amdgpu.modeset" and value == "0":
        return Trap(word, "amdgpu does not set up its hardware", True)
    return None


def traps(command_line: str) -> list[Trap]:
    """Words of a kernel command line that stand in the driver's way."""
    found = (_trap(word) for word in command_line.split())
    return [trap for trap in found if trap is not None]


def _grub_words(host: Host) -> list[_Word]:
    """The words of GRUB_CMDLINE_LINUX and …_DEFAULT; an assignment replaces an earlier one's."""
    kept: dict[str, list[_Word]] = {}
    parts = [f"{_GRUB_PARTS}/{name}" for name in host.listdir(_GRUB_PARTS) if name.endswith(".cfg")]
    for path in [_GRUB, *parts]:
        for number, line in enumerate((host.read(path) or "").split("\n"), 1):
            match = _ASSIGNMENT.match(line)
            if match is None:
                continue
            name, plus, value = match.groups()
            try:
                text = " ".join(shlex.split(value, comments=True)[:1])
            except ValueError:
                text = value
            extends = bool(plus) or re.search(rf"\$\{{?{name}\b", text) is not None
            before = kept.get(name, []) if extends else []
            kept[name] = [*before, *(_Word(path, number, word) for word in text.split())]
    return [word for words in kept.values() for word in words]


def _configured(host: Host) -> list[_Word]:
    found = _grub_words(host)
    for number, line in enumerate((host.read(_KERNEL_INSTALL) or "").split("\n"), 1):
        found += [_Word(_KERNEL_INSTALL, number, word) for word in line.split()]
    return found


def read_traps(host: Host) -> list[Trap]:
    """The traps of this boot with the file they come from, then those that wait for the next one."""
    running = list(dict.fromkeys(traps(modprobe_conf.read_command_line(host))))
    found = []
    placed: set[Trap] = set()
    for path, number, word in _configured(host):
        for trap in traps(word):
            placed.add(trap)
            found.append(trap._replace(path=path, line=number, running=trap in running))
    return [
        *(trap for trap in running if trap not in placed),
        *sorted(found, key=lambda trap: not trap.running),
    ]
