# SPDX-License-Identifier: Apache-2.0
"""What a grub.cfg sets beside its entries, in every form that GRUB takes; custom.cfg's lines among them.

Anything after 00_header wins: a line in 40_custom, or custom.cfg, which 41_custom has GRUB read at each
boot. What cannot be read here is named as unknown, and nothing is built on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

CUSTOM = "/boot/grub/custom.cfg"

_NAMES = "default|fallback|timeout|superusers|saved_entry"
_START = r"(?:^|[;{]|\bthen\b|\belse\b|\bdo\b)\s*"
_SET = re.compile(
    rf"{_START}(?:(?:set|export)\s+)?(?P<name>{_NAMES})="
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|[^\s;}"']*)"""
    rf"|{_START}unset\s+(?P<gone>{_NAMES})(?=[\s;}}]|$)"
)
_SOURCE = re.compile(_START + r"(?:source|\.|configfile|legacy_source|extract_entries_source)\s+(\S+)")
_CUSTOM = re.compile(r"""["']?\$\{?(?:config_directory|prefix)\}?/custom\.cfg["']?;?$""")
# Other ways to change one of them: not followed.
_OTHER = re.compile(
    rf"--set[= ](?:\d+:)?(?:{_NAMES})\b|\b(?:read|for)\s+(?:{_NAMES})\b|{_START}eval\s"
    rf"|\bload_env\s.*\b(?:{_NAMES})\b"
)
_BLOCK = re.compile(r"^\s*(menuentry|submenu|function\s+(\S+))\b.*\{\s*$")
# grub-mkconfig's own functions: entries call them.
_OWN = frozenset({"savedefault", "recordfail", "load_video", "gfxmode", "initrdfail"})
_OWN_SAVED = ("prev_saved_entry", "chosen")


class Script(NamedTuple):
    """``assigned``: (variable, value) in their order, "" for ``unset``; ``unknown``: lines not followed."""

    assigned: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]

    def values(self, name: str) -> list[str]:
        """All values of a variable, in their order: a condition is not looked at."""
        return [value for variable, value in self.assigned if variable == name]


def whole(text: str, custom: str | None) -> str:
    """grub.cfg with what GRUB reads in custom.cfg's place; *custom* None where there is no such file."""
    lines = []
    for line in text.splitlines():
        source = _SOURCE.search(line)
        if source and _CUSTOM.match(source.group(1)):
            lines += (custom or "").splitlines()
            custom = None  # the same file in another branch
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _outside(text: str) -> list[str]:
    """Lines that run when the file is read: those in no entry and in none of grub-mkconfig's functions."""
    found: list[str] = []
    blocks: list[bool] = []  # whether each open block is one that does not run
    for line in text.splitlines():
        opened = _BLOCK.match(line)
        if opened:
            blocks.append(opened.group(2) is None or opened.group(2) in _OWN)
        elif line.rstrip().endswith("{"):
            blocks.append(False)
        elif line.strip() == "}" and blocks:
            blocks.pop()
        elif not any(blocks) and not line.lstrip().startswith("#"):
            found.append(line)
    return found


def parse(text: str) -> Script:
    """What :func:`whole`'s text sets."""
    assigned: list[tuple[str, str]] = []
    unknown: list[str] = []
    for line in _outside(text):
        for match in _SET.finditer(line):
            value = match.group("value") or ""
            if value[:1] in ("'", '"'):
                value = value[1:-1]
            name = match.group("name") or match.group("gone")
            assigned.append((name, value))
            if name == "saved_entry" and not any(own in value for own in _OWN_SAVED):
                unknown.append(line.strip())
        if _SOURCE.search(line) or _OTHER.search(line):
            unknown.append(line.strip())
    return Script(tuple(assigned), tuple(unknown))


def default(script: Script) -> str:
    """What ``default`` ends as where nothing one-shot is set."""
    values = [value for value in script.values("default") if "next_entry" not in value]
    return values[-1] if values else "0"


def fallback(script: Script) -> tuple[int, ...]:
    """The indices that ``fallback`` ends as."""
    last = script.values("fallback")[-1:]
    return tuple(int(word) for value in last for word in value.split() if word.isdigit())


def waits(script: Script, settings: Mapping[str, str], unrestricted: bool) -> str:
    """Why GRUB would wait for a key that nobody presses, in words, or "".

    *settings*: those of /etc/default/grub, which the next menu gets; *unrestricted*: whether every
    kernel's entry boots without a password.
    """
    times = [(f"set timeout={value}", value) for value in script.values("timeout")]
    names = ("GRUB_TIMEOUT", "GRUB_RECORDFAIL_TIMEOUT", "GRUB_HIDDEN_TIMEOUT")
    times += [(f"{name}={settings[name]}", settings[name]) for name in names if name in settings]
    for where, value in times:
        if value.strip().startswith("-"):
            return f"GRUB waits at its menu for a key ({where})"
    if script.values("superusers")[-1:] not in ([], [""]) and not unrestricted:
        return "GRUB asks for a password before it boots an entry (`set superusers`, no --unrestricted)"
    return ""
