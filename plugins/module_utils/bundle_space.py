# SPDX-License-Identifier: Apache-2.0
"""Disk space for a bundle: asked before the first byte, explained when it ran out."""

from __future__ import annotations

import errno
import os
import shutil

from . import disk
from .disk import MIB
from .host import Host
from .lock import Release
from .module import Refused
from .paths import BUNDLE_ROOT, CACHE_DIR

# Folders, partly filled blocks and inodes of a tree beyond its files' bytes (measured: 5 % on ext4
# for 45,000 files), and room that the host keeps for itself.
OVERHEAD, RESERVE = 1.06, 256 * MIB
# Where the lock does not know the tree: a bundle unpacks to 3.4 times its archive (3.3 -> 11 GB).
UNPACKED_RATIO = 4


def needed(release: Release) -> int:
    """Bytes of disk that the unpacked tree takes, with what the host keeps for itself."""
    size = release.tree.size if release.tree else release.size * UNPACKED_RATIO
    return int(size * OVERHEAD) + RESERVE


def check_space(host: Host, release: Release, kept: int = 0) -> None:
    """Refuse, with numbers, before the first byte where the tree cannot fit; *kept* bytes are there."""
    free, need = disk.free_bytes(host, BUNDLE_ROOT), max(needed(release) - kept, RESERVE)
    if free < need:
        raise Refused(
            f"Not enough disk for release {release.tag}: its tree needs {_mib(need)} below {BUNDLE_ROOT}, "
            f"{_mib(free)} are free (missing: {_mib(need - free)}).",
            "Free some space there, or mount a larger disk at that folder.",
        )


def cache_folder(host: Host, release: Release, kept: int = 0) -> tuple[str | None, str]:
    """The folder that keeps parts for a later run, or None (and why) where the disk has no room.

    *kept*: bytes of the tree that are there.
    """
    check_space(host, release, kept)
    folder = host.path(f"{CACHE_DIR}/{release.tag}")
    have = sum(entry.stat().st_size for entry in os.scandir(folder)) if os.path.isdir(folder) else 0
    cache_root = host.path(disk.nearest(host, CACHE_DIR))
    same = os.stat(cache_root).st_dev == os.stat(host.path(BUNDLE_ROOT)).st_dev
    need = release.size - have + (max(needed(release) - kept, RESERVE) if same else RESERVE)
    if disk.free_bytes(host, CACHE_DIR) >= need:
        os.makedirs(folder, exist_ok=True)
        return folder, ""
    erase(folder)
    return None, (
        f"{CACHE_DIR} has no room for the archive ({_mib(release.size)}) beside the tree: parts are not "
        "kept, and a run that is killed fetches this release anew."
    )


def explained(host: Host, error: OSError, release: Release) -> Exception:
    """A full disk in the user's words and with numbers; other errors as they are."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    elsewhere = _elsewhere(host, error)
    if elsewhere:
        status = os.statvfs(elsewhere)
        return Refused(
            f"The disk of {elsewhere} filled up while release {release.tag} was laid down: {error}. "
            f"{_mib(status.f_bavail * status.f_frsize)} and {status.f_favail:,} inodes are free there now.",
            "The active bundle was not touched. Free some space there, then run the same command again.",
        )
    free = disk.free_bytes(host, BUNDLE_ROOT)
    return Refused(
        f"The disk filled up while release {release.tag} was laid down: {error}. "
        f"{_mib(needed(release))} are needed below {BUNDLE_ROOT}, {_mib(free)} are free now.",
        "The active bundle was not touched. Free some space, then run the same command again.",
    )


def _elsewhere(host: Host, error: OSError) -> str:
    """The folder that the error speaks of, where that is not on the bundles' file system; else ""."""
    if not isinstance(error.filename, str):
        return ""
    folder = os.path.dirname(error.filename) or "."
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "."
    bundles = host.path(disk.nearest(host, BUNDLE_ROOT))
    return "" if os.stat(folder).st_dev == os.stat(bundles).st_dev else folder


def erase(real: str) -> None:
    """Remove a file, a link or a whole folder; fine where it is gone already."""
    if os.path.isdir(real) and not os.path.islink(real):
        shutil.rmtree(real)
    elif os.path.lexists(real):
        os.unlink(real)


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
