# SPDX-License-Identifier: Apache-2.0
"""The lab's engine: a bundle in AMD's layout that really answers, and the models it serves."""

from __future__ import annotations

from .models import MODELS, SMOLLM, TINY, Model
from .release import ENGINES, EngineRelease, Release, build, host_variables

__all__ = [
    "ENGINES",
    "MODELS",
    "SMOLLM",
    "TINY",
    "EngineRelease",
    "Model",
    "Release",
    "build",
    "host_variables",
]
