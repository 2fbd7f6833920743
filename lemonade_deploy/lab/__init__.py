# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts: real systemd, ssh, apt and dpkg; a pretended GPU, kernel and vendor archive."""

from __future__ import annotations

from .fleet import Lab
from .shell import Completed, LabError, LabUsageError

__all__ = ["Completed", "Lab", "LabError", "LabUsageError"]
