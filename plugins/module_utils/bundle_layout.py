# SPDX-License-Identifier: Apache-2.0
"""What an unpacked bundle consists of, and which of its vital parts are missing.

Source: vllm-rocm's own tier-0 check (scripts/qualify/tier0_static.py) and the failures that
taught it: lost hidden `.kpack` folders (hipErrorInvalidImage at the first kernel, #21), a
trimmed clang (#16, #40). Only names and sizes are looked at: a few dozen stat calls.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable

SERVER = "bin/vllm-server"
SITE = "lib/python3.*/site-packages"
PYTHON = "bin/python3*"
# What AMD's launcher puts on LD_LIBRARY_PATH (vllm-rocm build-vllm-rocm.yml).
LIBRARIES = (
    f"{SITE}/_rocm_sdk_*/lib",
    f"{SITE}/torch/lib",
    f"{SITE}/_rocm_sdk_core/lib/llvm/lib",
)
CLANG = f"{SITE}/_rocm_sdk_core/lib/llvm/bin/clang"


def kpack_pattern(family: str) -> str:
    """Shell pattern of a family's ISA in a file name: gfx110X holds gfx1100, gfx1101 …"""
    return re.sub(r"X$", "[0-9a-f]", family)


def missing(root: str, family: str) -> list[str]:
    """One message for each vital part that is not there, empty, or not executable."""
    isa = kpack_pattern(family)
    libraries = f"{SITE}/_rocm_sdk_libraries*/.kpack/*_{isa}.kpack"
    found = [
        _need(root, SERVER, "the launcher", executable=True),
        _need(root, PYTHON, "the bundled Python", executable=True),
        _need(root, f"{SITE}/vllm/_C*.so", "vLLM's native extension"),
        _need(root, f"{SITE}/vllm/_rocm_C*.so", "vLLM's ROCm extension"),
        _need(root, f"{SITE}/torch/.kpack/torch_{isa}.kpack", f"PyTorch's code objects for {family}"),
        _need(root, libraries, f"the ROCm libraries' code objects for {family}"),
        _need(root, CLANG, "the bundled compiler", executable=True),
    ]
    return [message for message in found if message]


def first(root: str, pattern: str) -> str | None:
    """The first path below *root* that matches, or None."""
    return next(iter(every(root, (pattern,))), None)


def every(root: str, patterns: Iterable[str]) -> list[str]:
    """All paths below *root* that match one of the patterns, sorted within each."""
    return [path for pattern in patterns for path in sorted(_glob(root, pattern))]


def _glob(root: str, pattern: str) -> list[str]:
    return glob.glob(os.path.join(glob.escape(root), pattern))


def _need(root: str, pattern: str, what: str, executable: bool = False) -> str | None:
    paths = _glob(root, pattern)
    if not paths:
        return f"{what} is missing ({pattern})"
    for path in paths:
        if os.path.isfile(path) and os.path.getsize(path) == 0:
            return f"{what} is empty ({os.path.relpath(path, root)})"
    if executable and not any(os.path.isfile(path) and os.access(path, os.X_OK) for path in paths):
        return f"{what} is not executable ({pattern})"
    return None
