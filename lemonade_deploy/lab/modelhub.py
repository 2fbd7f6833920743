# SPDX-License-Identifier: Apache-2.0
"""Joins the simulated model hub and GitHub's API to the lab's web server (its ``--hooks``)."""

from __future__ import annotations

from .engine import hub
from .services import github

HOOKS = {**hub.HOOKS, **github.HOOKS}

__all__ = ["HOOKS"]
