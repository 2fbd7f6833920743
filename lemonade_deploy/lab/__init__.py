# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts: real systemd, ssh, apt and dpkg; a pretended GPU, kernel and vendor archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .shell import Completed, LabError, LabUsageError

if TYPE_CHECKING:
    from .fleet import Lab

__all__ = ["Completed", "Lab", "LabError", "LabUsageError"]


def __getattr__(name: str) -> Any:
    """Lab, imported late: the process beside each host needs only a part of this package."""
    if name != "Lab":
        raise AttributeError(name)
    from .fleet import Lab

    return Lab
