# SPDX-License-Identifier: Apache-2.0
"""Plugins of the collection, imported as Ansible imports them."""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from lemonade_deploy import content


def load(name: str) -> Any:
    """The plugin *name* (``action.preflight``); nothing of the import is left for other tests."""
    before = set(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(content.link_collection(Path(folder))))
        module = importlib.import_module(f"ansible_collections.lemonade.deploy.plugins.{name}")
        del sys.path[0]
    for loaded in set(sys.modules) - before:
        if loaded.startswith("ansible_collections"):
            del sys.modules[loaded]
    return module
