# SPDX-License-Identifier: Apache-2.0
"""Stray environment settings that change which GPU ROCm thinks it has."""

from __future__ import annotations

import re
from typing import NamedTuple

from .host import Host

FILES = ("/etc/environment", "/etc/default/lemond")
FOLDERS = ("/etc/environment.d", "/etc/profile.d", "/etc/systemd/system/lemond.service.d")
_OVERRIDE = re.compile(r"^(?!\s*#).*\bHSA_OVERRIDE_GFX_VERSION=\S*", re.MULTILINE)


class Stray(NamedTuple):
    """A line that sets HSA_OVERRIDE_GFX_VERSION: its file, number (from 1) and text."""

    path: str
    line: int
    text: str


def hsa_overrides(host: Host) -> list[Stray]:
    """Lines that set HSA_OVERRIDE_GFX_VERSION for everybody or for lemond.

    On gfx1150 and gfx1151, which have native builds, even an empty value breaks ROCm
    (rocm-systems#3461, #5686).
    """
    paths = [*FILES, *(f"{folder}/{name}" for folder in FOLDERS for name in host.listdir(folder))]
    found = []
    for path in paths:
        text = host.read(path) or ""
        for match in _OVERRIDE.finditer(text):
            found.append(Stray(path, text.count("\n", 0, match.start()) + 1, match[0].strip()))
    return found
