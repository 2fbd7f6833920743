# SPDX-License-Identifier: Apache-2.0
"""Where the vLLM that serves stands: in the kit's bundle, or where lemond has installed one itself.

lemond's ``vllm.rocm_bin`` tells: a path is the kit's launcher, anything else makes lemond install.
"""

from __future__ import annotations

import json
import os

from . import paths
from .host import Host

# From Lemonade 11.8 on, and before that (its commit edf2aa529).
LEMOND_FOLDERS = ("/var/cache/lemonade/bin/vllm/rocm", "/var/lib/lemonade/.cache/lemonade/bin/vllm/rocm")
VERSION = "version.txt"


def by_lemond(host: Host) -> bool:
    """Whether lemond, as the kit has set it up here, installs its vLLM itself."""
    if host.exists(paths.VLLM_UNIT):
        return False
    try:
        settings = json.loads(host.read(paths.LEMOND_DEFAULTS) or "{}")
        return not str(settings.get("vllm", {}).get("rocm_bin", "/")).startswith("/")
    except (ValueError, AttributeError):
        return False


def lemond_folder(host: Host) -> str:
    """lemond's own installation: the one that is there, else where it would come."""
    there = (folder for folder in LEMOND_FOLDERS if host.exists(f"{folder}/{VERSION}"))
    return next(there, LEMOND_FOLDERS[0])


def lemond_version(host: Host) -> str:
    """The release tag that lemond has installed, "" for none."""
    return (host.read(f"{lemond_folder(host)}/{VERSION}") or "").strip()


def active(host: Host) -> str:
    """The folder of the vLLM that serves, "" where there is none."""
    if by_lemond(host):
        return lemond_folder(host) if lemond_version(host) else ""
    target = host.readlink(paths.BUNDLE_CURRENT)
    return os.path.normpath(os.path.join(paths.BUNDLE_ROOT, target)) if target else ""
