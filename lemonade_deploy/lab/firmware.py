# SPDX-License-Identifier: Apache-2.0
"""Derives, at each boot, what the real machine would show from what is on the host's disk."""

from __future__ import annotations

from . import view
from .boot import Boot
from .hardware import MACHINES
from .host import Host


def boot(host: Host) -> Boot:
    """Boot decision of *host*, written as its view."""
    decided = Boot("", "", "BOOT_IMAGE=lab quiet", None, "no kernel on the disk")
    view.write(host.view, MACHINES["strix-halo"], decided, 0, 0)
    return decided
