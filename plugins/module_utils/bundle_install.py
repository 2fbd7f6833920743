# SPDX-License-Identifier: Apache-2.0
"""Lay down a bundle: disk check, stream, verify, unpack beside, check, sync, rename.

Killed anywhere, a host has the old bundle or the new one: the final name appears by one
rename after everything was verified, `current` by another.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator

from . import bundle, bundle_progress, bundle_space
from .bundle_stream import Check, Filling, Order, Stats, fill
from .fetch import FetchError
from .host import Host
from .lock import Release
from .manifest import Manifest
from .module import Refused
from .paths import BUNDLE_CURRENT, BUNDLE_ROOT, CACHE_DIR, LAUNCHER, PREFIX

LOCK_WAIT = 1800.0  # s; another run that lays down a bundle is doing our work

__all__ = ["Check", "Order", "Stats", "activate", "lay_down"]


def lay_down(host: Host, order: Order, name: str, stats: Stats) -> None:
    """Make BUNDLE_ROOT/*name* the complete tree of the release. Raises Refused, OSError."""
    ensure_root(host)
    staging = f"{BUNDLE_ROOT}/{name}{bundle.PARTIAL}"
    with _exclusive(host) as lock:
        if bundle.read_tree(host, name):
            return  # the run that was waited for did it
        filling = Filling(host, order, staging, stats, lock)
        kept = filling.kept()
        if not kept:
            filling.erase()
        bundle_space.check_space(host, order.release, kept)
        try:
            manifest = fill(filling)
            began = time.monotonic()
            order.check(host, staging, order.release.family)
            stats.static_check_seconds = time.monotonic() - began
            _finish(host, order.release, manifest, staging, name)
        except OSError as error:
            bundle_space.erase(host.path(staging))
            raise bundle_space.explained(host, error, order.release) from error
        except FetchError:
            raise  # what is there is sound: the next run goes on
        except BaseException:
            bundle_space.erase(host.path(staging))
            raise
        bundle_space.erase(host.path(f"{CACHE_DIR}/{order.release.tag}"))


def _finish(host: Host, release: Release, manifest: Manifest, staging: str, name: str) -> None:
    """Write manifest and record, get all of it on the disk, give it its name."""
    host.write(f"{staging}/{bundle.MANIFEST}", manifest.text())
    record = {
        "schema": bundle.RECORD_SCHEMA,
        "tag": release.tag,
        "family": release.family,
        "archive": release.archive,
        "assets": [{"name": a.name, "size": a.size, "sha256": a.sha256} for a in release.assets],
        "tree": {"digest": manifest.digest(), "size": manifest.size, "files": manifest.files},
        "installed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    host.write(f"{staging}/{bundle.RECORD}", json.dumps(record, indent=1) + "\n")
    os.unlink(host.path(f"{staging}/{bundle_progress.NAME}"))
    host.run(("sync", "--file-system", host.path(staging)), timeout=1800)
    os.rename(host.path(staging), host.path(f"{BUNDLE_ROOT}/{name}"))
    sync_folder(host, BUNDLE_ROOT)


def activate(host: Host, name: str) -> None:
    """Point `current` at a complete tree, in one step that is on the disk afterwards."""
    stamp = host.path(f"{BUNDLE_ROOT}/{name}/{bundle.ACTIVATED}")
    with open(stamp, "w", encoding="utf-8"):
        os.utime(stamp)
    bundle_space.erase(host.path(f"{BUNDLE_ROOT}/{name}/{bundle.ROLLED_BACK}"))
    link = host.path(BUNDLE_CURRENT)
    bundle_space.erase(f"{link}{bundle.PARTIAL}")
    os.symlink(name, f"{link}{bundle.PARTIAL}")
    os.replace(f"{link}{bundle.PARTIAL}", link)
    sync_folder(host, BUNDLE_ROOT)


def remove_tree(name: str, host: Host) -> None:
    """Remove a tree; it first loses its name, so that half of one is never taken for whole."""
    doomed = host.path(f"{BUNDLE_ROOT}/{name}.old{bundle.PARTIAL}")
    bundle_space.erase(doomed)
    os.rename(host.path(f"{BUNDLE_ROOT}/{name}"), doomed)
    bundle_space.erase(doomed)


def remove(path: str, host: Host) -> None:
    """Remove a leftover, while no other run is at work."""
    with _exclusive(host):
        bundle_space.erase(host.path(path))


def ensure_root(host: Host) -> None:
    """Make the kit's folders such that the service's user can pass them, whatever the umask."""
    for path in (PREFIX, BUNDLE_ROOT, os.path.dirname(LAUNCHER)):
        os.makedirs(host.path(path), exist_ok=True)
        if os.stat(host.path(path)).st_mode & 0o755 != 0o755:
            os.chmod(host.path(path), 0o755)  # noqa: S103


def sync_folder(host: Host, path: str) -> None:
    """fsync a folder: the names in it survive a pulled plug."""
    handle = os.open(host.path(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _exclusive(host: Host) -> Iterator[int]:
    """One run at a time on a host; the lock (a descriptor) ends with the last process that holds it."""
    os.makedirs(host.path("/run"), exist_ok=True)
    path = host.path("/run/lemonade-deploy-bundle.lock")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_WAIT
        while not _locked(handle):
            if time.monotonic() > deadline:
                raise Refused(
                    f"Another run has been laying down a bundle on this host for {LOCK_WAIT:.0f} s.",
                    "Wait for it, or end it (see `ps`), then run the same command again.",
                )
            time.sleep(0.2)  # flock has no time limit of its own
        yield handle
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
