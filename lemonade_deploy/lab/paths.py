# SPDX-License-Identifier: Apache-2.0
"""Where the lab keeps its things: what can be made again in the cache, what is in use in the state folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Downloads, roots and built artefacts; safe to delete while no lab is up."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "lemonade-deploy"


def state_dir() -> Path:
    """Disks, keys, inventory and process records of the lab that is up (``LEMONADE_LAB_DIR``)."""
    return Path(os.environ.get("LEMONADE_LAB_DIR") or "/var/lib/lemonade-lab")
