# SPDX-License-Identifier: Apache-2.0
"""Free space where the kit is going to write."""

from __future__ import annotations

import os

from .host import Host

GIB = 1024**3
MIB = 1024**2
# An initrd with amdgpu's firmware takes about 100 MiB, and a new one is written beside the old.
BOOT_MIN_MIB = 200


def nearest(host: Host, path: str) -> str:
    """The nearest folder above (or at) *path* that is there."""
    while path != "/" and not host.is_dir(path):
        path = os.path.dirname(path)
    return path


def free_bytes(host: Host, path: str) -> int:
    """Bytes that root may write on the file system of *path* (or of its nearest parent)."""
    status = os.statvfs(host.path(nearest(host, path)))
    return status.f_bavail * status.f_frsize
