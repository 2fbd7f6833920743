# SPDX-License-Identifier: Apache-2.0
"""GRUB's menu, its environment block and its defaults, read from the files it reads itself.

What was tried on real boots: a one-shot ``next_entry`` comes before the default and is used up;
``grub-set-default`` clears it, so the default is set first; ``grub-reboot`` does not validate ids,
and a wrong one boots entry 0 without an error, so ids are taken out of grub.cfg and read back.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from . import grub_script
from .host import Host

GRUB_CFG = "/boot/grub/grub.cfg"
GRUBENV = "/boot/grub/grubenv"
GRUBENV_BYTES = 1024
DEFAULT_FILE = "/etc/default/grub"
DEFAULT_PARTS = "/etc/default/grub.d"
ID_PREFIX = "lemonade-deploy-"  # of our own entries (trial_menu)

_OPEN = re.compile(r"^\s*(menuentry|submenu)\s+(?P<rest>.*)\{\s*$")
_LINUX = re.compile(r"^\s*linux(?:efi|16)?\s+(\S+)(.*)$")
_VMLINUZ = re.compile(r"/vmlinu[zx]-(\S+)$")
_LINE = re.compile(r"((?:[^\\\n]|\\.)*)\n", re.DOTALL)  # a backslash quotes the next character


@dataclass
class Item:
    """A menu entry or a submenu; ``release`` is the kernel an entry loads, "" where unknown."""

    submenu: bool
    title: str
    id: str
    release: str = ""
    recovery: bool = False
    initrd: bool = False
    unrestricted: bool = False  # boots without a password
    arguments: tuple[str, ...] = ()
    children: list[Item] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What selects it: its id, else its title (``>`` separates levels and is doubled inside)."""
        return self.id or self.title.replace(">", ">>")


def _item(kind: str, rest: str) -> Item:
    try:
        words = shlex.split(rest.replace("$menuentry_id_option", "--id"))
    except ValueError:
        words = [rest.strip()]
    ident = ""
    for number, word in enumerate(words):
        if word == "--id" and number + 1 < len(words):
            ident = words[number + 1]
        elif word.startswith("--id="):
            ident = word[len("--id=") :]
    return Item(
        kind == "submenu", words[0] if words else "", ident, unrestricted="--unrestricted" in words[1:]
    )


def parse_menu(text: str) -> list[Item]:
    """The menu of a grub.cfg as a tree, in its order."""
    top: list[Item] = []
    stack: list[Item | None] = []  # None for other blocks (functions)
    for line in text.splitlines():
        opened = _OPEN.match(line)
        holder = next((item for item in reversed(stack) if item is not None), None)
        if opened:
            item = _item(opened.group(1), opened.group("rest"))
            (holder.children if holder else top).append(item)
            stack.append(item)
        elif line.rstrip().endswith("{"):
            stack.append(None)
        elif line.strip() == "}" and stack:
            stack.pop()
        elif holder is not None and not holder.submenu:
            _entry_line(holder, line)
    return top


def _entry_line(entry: Item, line: str) -> None:
    linux = _LINUX.match(line)
    if linux:
        kernel = _VMLINUZ.search(linux.group(1))
        entry.release = kernel.group(1) if kernel else ""
        entry.arguments = tuple(linux.group(2).split())
        entry.recovery = "recovery" in entry.arguments or "single" in entry.arguments
    elif line.split()[:1] in (["initrd"], ["initrdefi"], ["initrd16"]):
        entry.initrd = True


def entry_of(menu: Sequence[Item], release: str) -> str | None:
    """What selects the normal entry of a kernel (``submenu-id>entry-id``), or None.

    An entry whose id or title names the kernel is preferred: the top entry ("simple") follows the
    highest version and means another kernel after the next installation. Our own entries change
    their kernel as well.
    """
    found = [
        (path, item)
        for path, item in _walk(menu, "")
        if item.release == release and not item.recovery and not item.id.startswith(ID_PREFIX)
    ]
    named = [path for path, item in found if release in item.name]
    paths_found = named or [path for path, _item in found]
    return paths_found[0] if paths_found else None


def entries_of(menu: Sequence[Item], release: str | None) -> list[Item]:
    """All normal entries of a kernel, at any level; of any kernel for None."""
    items = [item for _path, item in _walk(menu, "")]
    return [item for item in items if item.release and release in (None, item.release) and not item.recovery]


def _walk(menu: Sequence[Item], prefix: str) -> list[tuple[str, Item]]:
    found: list[tuple[str, Item]] = []
    for item in menu:
        path = f"{prefix}{item.name}"
        found += _walk(item.children, f"{path}>") if item.submenu else [(path, item)]
    return found


def resolve(menu: Sequence[Item], spec: str) -> Item | None:
    """The entry GRUB boots for ``default=spec``: an id, title or number at each level.

    Like GRUB, anything it does not find (an empty one too) means entry 0.
    """
    level = menu
    for part in re.split(r"(?<!>)>(?!>)", spec):
        part = part.replace(">>", ">")
        found = next((item for item in level if part and part in (item.id, item.title)), None)
        if found is None and part.isdigit() and int(part) < len(level):
            found = level[int(part)]
        if found is None:
            return _first(menu)
        if not found.submenu:
            return found
        level = found.children
    return _first(level)


def _first(level: Sequence[Item]) -> Item | None:
    while level:
        if not level[0].submenu:
            return level[0]
        level = level[0].children
    return None


def parse_env(data: bytes) -> dict[str, str]:
    """Variables of a GRUB environment block: ``name=value`` lines, padded with ``#`` to 1024 bytes."""
    values: dict[str, str] = {}
    # Without the padding, which is no line: the search for its end would begin anew at each of its bytes.
    for line in _LINE.findall(data.rstrip(b"#").decode("utf-8", "replace")):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values[name] = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
    return values


def format_env(values: dict[str, str]) -> bytes:
    """The block that :func:`parse_env` reads. Raises ValueError where it does not fit."""
    text = "# GRUB Environment Block\n"
    for name, value in values.items():
        quoted = value.replace("\\", "\\\\").replace("\n", "\\\n")
        text += f"{name}={quoted}\n"
    data = text.encode()
    if len(data) > GRUBENV_BYTES:
        raise ValueError(f"{len(data)} bytes do not fit a GRUB environment block of {GRUBENV_BYTES}")
    return data + b"#" * (GRUBENV_BYTES - len(data))


def settings(host: Host) -> dict[str, str]:
    """Variables of /etc/default/grub and grub.d/*.cfg as grub-mkconfig sources them (last wins)."""
    values: dict[str, str] = {}
    parts = [f"{DEFAULT_PARTS}/{name}" for name in host.listdir(DEFAULT_PARTS) if name.endswith(".cfg")]
    for path in [DEFAULT_FILE, *parts]:
        for name, value in re.findall(
            r"^\s*(?:export\s+)?(GRUB_\w+)=(.*)$", host.read(path) or "", re.MULTILINE
        ):
            try:
                words = shlex.split(value, comments=True)
            except ValueError:
                words = [value]
            values[name] = words[0] if words else ""
    return values


class Grub(NamedTuple):
    """GRUB's state on a host. ``default`` is what grub.cfg sets, e.g. ``0`` or ``${saved_entry}``."""

    menu: tuple[Item, ...]
    default: str
    env: dict[str, str]
    settings: dict[str, str]
    fallback: tuple[int, ...] = ()
    unknown: tuple[str, ...] = ()  # lines whose effect on default and fallback is not known
    waits: str = ""  # why GRUB would wait for a key that nobody presses, "" where it does not

    @property
    def follows_saved(self) -> bool:
        """Whether menu and settings both boot saved_entry, and do not overwrite it at every boot."""
        saves = self.settings.get("GRUB_SAVEDEFAULT") == "true"
        return "saved_entry" in self.default and self.settings.get("GRUB_DEFAULT") == "saved" and not saves

    def default_release(self) -> str:
        """Release of the kernel that boots when nothing one-shot is set ("" where unknown)."""
        spec = self.env.get("saved_entry", "") if "saved_entry" in self.default else self.default
        entry = resolve(self.menu, spec)
        return entry.release if entry else ""

    def entry(self, ident: str) -> Item | None:
        """The top entry with this id, or None."""
        return next((item for item in self.menu if item.id == ident and not item.submenu), None)

    def next_release(self) -> str:
        """Release of the one-shot entry, or "" where none is set."""
        spec = self.env.get("next_entry", "")
        entry = resolve(self.menu, spec) if spec else None
        return entry.release if entry else ""


def read(host: Host) -> Grub | None:
    """GRUB's state, or None where there is no grub.cfg."""
    text = host.read(GRUB_CFG)
    if text is None:
        return None
    text = grub_script.whole(text, host.read(grub_script.CUSTOM))
    script, menu, chosen = grub_script.parse(text), parse_menu(text), settings(host)
    return Grub(
        tuple(menu),
        grub_script.default(script),
        parse_env(host.read_bytes(GRUBENV) or b""),
        chosen,
        grub_script.fallback(script),
        script.unknown,
        grub_script.waits(script, chosen, all(item.unrestricted for item in entries_of(menu, None))),
    )


def snippet() -> str:
    """Content of :data:`paths.GRUB_SNIPPET`."""
    return (
        "# Managed by lemonade-deploy (role kernel): a new kernel is booted once and becomes the default\n"
        "# only after it proved itself; until then every plain boot takes the saved, known-good one.\n"
        "GRUB_DEFAULT=saved\n"
        "GRUB_SAVEDEFAULT=false\n"
    )


class EntryMissing(OSError):
    """The menu has no entry for a kernel, or GRUB's tools did not keep what they were told."""


def set_default(host: Host, release: str) -> None:
    """saved_entry = *release*, read back; clears a one-shot entry. Raises EntryMissing, CommandFailed."""
    host.run(["grub-set-default", _selector(host, release)])
    _demand(host, "saved_entry", release)


def set_next(host: Host, selector: str, release: str) -> None:
    """Boot the entry *selector* once, which must be *release*'s. Raises EntryMissing, CommandFailed."""
    host.run(["grub-reboot", selector])
    _demand(host, "next_entry", release)


def clear_next(host: Host) -> None:
    """The next boot takes the default. Raises CommandFailed."""
    host.run(["grub-editenv", GRUBENV, "unset", "next_entry"])


def _selector(host: Host, release: str) -> str:
    state = read(host)
    selector = entry_of(state.menu, release) if state else None
    if selector is None:
        raise EntryMissing(f"{GRUB_CFG} has no entry for kernel {release}")
    return selector


def _demand(host: Host, variable: str, release: str) -> None:
    state = read(host)
    spec = state.env.get(variable, "") if state else ""
    entry = resolve(state.menu, spec) if state and spec else None
    if entry is None or entry.release != release:
        raise EntryMissing(f"{GRUBENV} was to get {variable} for kernel {release}, but reads {spec!r}")
