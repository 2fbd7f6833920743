# SPDX-License-Identifier: Apache-2.0
"""Joins the simulated model hub to the lab's web server (its ``--hooks``)."""

from __future__ import annotations

from .engine.hub import HOOKS

__all__ = ["HOOKS"]
