# SPDX-License-Identifier: Apache-2.0
"""Stray environment settings that change which GPU ROCm thinks it has."""

from __future__ import annotations

import re
from typing import NamedTuple

from .host import Host

NAME = "HSA_OVERRIDE_GFX_VERSION"
FILES = (
    "/etc/environment",
    "/etc/profile",
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "/etc/zsh/zshenv",
    "/etc/csh.cshrc",
    "/etc/security/pam_env.conf",
    "/etc/default/lemond",
    "/etc/lemonade-deploy/lemond.env",
    "/etc/systemd/system.conf",
)
FOLDERS = ("/etc/environment.d", "/etc/profile.d", "/etc/systemd/system.conf.d")
# systemd.unit(5); the service's own units, and what was put beside them.
UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system")
_UNITS = ("lemond", "lemonade", "vllm")
_ENVIRONMENT_FILE = re.compile(r"^\s*EnvironmentFile\s*=\s*-?(/\S+)", re.MULTILINE)
# NAME=value (shell, systemd), NAME DEFAULT=value (pam_env), setenv NAME value (csh). Only the assignment
# is shown: the line may hold a secret beside it.
_FORMS = rf"setenv[ \t]+{NAME}[ \t]+|{NAME}(?:=|[ \t]+(?:DEFAULT|OVERRIDE)=)"
_OVERRIDE = re.compile(
    rf"^(?![ \t]*[#;])[^\n]*?(?<![\w-])(?P<set>(?:{_FORMS})[^\s;\"']*)",
    re.MULTILINE,
)


class Stray(NamedTuple):
    """A line that sets HSA_OVERRIDE_GFX_VERSION: its file, number (from 1) and the assignment."""

    path: str
    line: int
    text: str


def _unit_files(host: Host) -> list[str]:
    found = []
    for folder in UNIT_FOLDERS:
        for name in host.listdir(folder):
            if not name.startswith(_UNITS):
                continue
            if name.endswith(".service"):
                found.append(f"{folder}/{name}")
            elif name.endswith(".service.d"):
                parts = host.listdir(f"{folder}/{name}")
                found += [f"{folder}/{name}/{part}" for part in parts if part.endswith(".conf")]
    return found


def hsa_overrides(host: Host) -> list[Stray]:
    """Lines that set HSA_OVERRIDE_GFX_VERSION for everybody or for the service.

    On gfx1150 and gfx1151, which have native builds, even an empty value breaks ROCm
    (rocm-systems#3461, #5686).
    """
    units = _unit_files(host)
    parts = [f"{folder}/{name}" for folder in FOLDERS for name in host.listdir(folder)]
    named = [path for unit in units for path in _ENVIRONMENT_FILE.findall(host.read(unit) or "")]
    found = []
    for path in dict.fromkeys([*FILES, *parts, *units, *named]):
        text = host.read(path) or ""
        if NAME not in text:
            continue
        for match in _OVERRIDE.finditer(text):
            found.append(Stray(path, text.count("\n", 0, match.start("set")) + 1, match["set"]))
    return found
