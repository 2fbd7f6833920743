# SPDX-License-Identifier: Apache-2.0
"""What the command's exit code says (docs/command.md is the user's copy of this table)."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every verb but ``lab exec``, which returns the command's own."""

    OK = 0  # nothing to do, or done
    FAILED = 1
    CHANGES = 2  # --check: the run would change something
    PARTIAL = 3  # some hosts failed, within the budget that was set
    REBOOT = 4  # stopped at a reboot of this very machine
    USAGE = 64  # wrong usage or input: file, variable, inventory (sysexits.h EX_USAGE)
