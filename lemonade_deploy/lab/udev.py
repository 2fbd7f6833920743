# SPDX-License-Identifier: Apache-2.0
"""Group and mode of the GPU's device nodes, from the udev rules on the host's disk.

No udevd runs in a container, so the firmware reads the rules: files in the order of their names,
/etc over /usr/lib, the last assignment wins (``:=`` ends it). Only the keys that matter for these
nodes are understood (SUBSYSTEM, KERNEL); a rule with any other match is left out.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("usr/lib/udev/rules.d", "run/udev/rules.d", "etc/udev/rules.d")
_PART = re.compile(r'\s*([A-Z]+)(==|!=|:=|\+=|=)"([^"]*)"\s*,?')


@dataclass(frozen=True)
class Permissions:
    """(gid, mode) of a node by its subsystem and kernel name."""

    rules: tuple[dict[str, tuple[str, str]], ...]
    groups: dict[str, int]

    def of(self, subsystem: str, kernel: str) -> tuple[int, int]:
        """Group id and mode; udev's own default is root's, 0600."""
        group, mode = "root", ""
        final: set[str] = set()
        for rule in self.rules:
            if not _fits(rule, {"SUBSYSTEM": subsystem, "KERNEL": kernel}):
                continue
            for key in ("GROUP", "MODE"):
                if key in rule and key not in final:
                    operator, value = rule[key]
                    group, mode = (value, mode) if key == "GROUP" else (group, value)
                    if operator == ":=":
                        final.add(key)
        gid = self.groups.get(group, 0)
        # udev opens a node for its group where a rule names one and no mode.
        return gid, int(mode or ("0660" if gid else "0600"), 8)


def _fits(rule: dict[str, tuple[str, str]], device: dict[str, str]) -> bool:
    for key, (operator, value) in rule.items():
        if operator not in ("==", "!="):
            continue
        if key not in device:
            return False
        matches = any(fnmatch.fnmatchcase(device[key], pattern) for pattern in value.split("|"))
        if matches != (operator == "=="):
            return False
    return True


def permissions(root: Path) -> Permissions:
    """Read rules and groups of the disk below *root*."""
    chosen: dict[str, Path] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*.rules")):
            chosen[path.name] = path
    rules = []
    for name in sorted(chosen):
        path = chosen[name]
        if path.is_file():
            rules += [_rule(line) for line in _lines(path.read_text(encoding="utf-8", errors="replace"))]
    groups = {}
    for line in (root / "etc/group").read_text(encoding="utf-8").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdigit():
            groups[fields[0]] = int(fields[2])
    return Permissions(tuple(rule for rule in rules if {"GROUP", "MODE"} & set(rule)), groups)


def _lines(text: str) -> list[str]:
    joined = text.replace("\\\n", " ").splitlines()
    return [line for line in joined if line.strip() and not line.lstrip().startswith("#")]


def _rule(line: str) -> dict[str, tuple[str, str]]:
    return {key: (operator, value) for key, operator, value in _PART.findall(line)}
