# SPDX-License-Identifier: Apache-2.0
"""Releases of lemonade-sdk/vllm-rocm: which one is the default, and what their tags are called."""

from __future__ import annotations

import re

from .gfx import FAMILIES

# The newest release that its own qualification feed calls qualified (14 of 15 tests, 2026-08-11, gfx1151;
# lemonade-sdk/vllm-rocm, branch qualification-data). Lemonade's built-in pin (0.20.1) is not in the feed.
DEFAULT_BASE = "vllm0.25.2.dev0+rocm7.15.0a20260724.g752a3a504.d20260724-rocm7.15.0"

# Release bases known to fail, and why (issues of lemonade-sdk/vllm-rocm).
_HIP_STREAM = "its _C.abi3.so lacks a HIP symbol and vLLM does not start (vllm-rocm#36, #10, #11, #19)"
KNOWN_BAD = {
    "vllm0.20.1-rocm7.12.0": _HIP_STREAM,
    "vllm0.21.0-rocm7.13.0": _HIP_STREAM,
    "vllm0.22.1-rocm7.13.0": f"{_HIP_STREAM}; its trimmed clang breaks Triton's compiler (vllm-rocm#16, #40)",
}

UNQUALIFIED_WORDS = "upstream's own hardware tests call it unqualified"

_BASE = re.compile(r"vllm(-omni)?\d[\w.+~]*-rocm\d[\w.]*")
_FAMILY_SUFFIX = re.compile(r"-(gfx[0-9a-zA-Z]+)$")


class BadRelease(ValueError):
    """A release name that cannot be a release, or not one for this host; says why."""


def unfit(base: str, unqualified: bool) -> str:
    """Why a release must not be taken without a word of the user's, or "".

    *unqualified*: the lock says so. That upstream has no record of a release says nothing.
    """
    return KNOWN_BAD.get(base, UNQUALIFIED_WORDS if unqualified else "")


def split(name: str) -> tuple[str, str | None]:
    """(base, family or None) of a release name with or without its family."""
    match = _FAMILY_SUFFIX.search(name)
    return (name[: match.start()], match[1]) if match else (name, None)


def is_tag(name: str) -> bool:
    """Whether *name* has the form of a release's tag: a base and a family."""
    base, family = split(name)
    return family is not None and _BASE.fullmatch(base) is not None


def base_for(name: str, family: str) -> str:
    """The base tag that *name* (empty: the default) means on a host of *family*.

    Raises BadRelease: ``latest`` may be another GPU's release, and so may a tag with a family.
    """
    base, stated = split(name or DEFAULT_BASE)
    if not _BASE.fullmatch(base):
        raise BadRelease(f"{name!r} is no vllm-rocm release (like {DEFAULT_BASE})")
    if stated is not None and stated != family:
        known = f"; known families: {', '.join(sorted(set(FAMILIES.values())))}" if family else ""
        raise BadRelease(f"release {name!r} is for {stated}, this host's GPU needs {family}{known}")
    return base


def rocm(base: str) -> str:
    """ROCm's version in a base tag (7.15.0); empty where there is none."""
    match = re.search(r"-rocm(\d+(?:\.\d+)*)[\w.]*$", base)
    return match[1] if match else ""


def tag(base: str, family: str) -> str:
    """Release tag of a base for a family."""
    return f"{base}-{family}"
