# SPDX-License-Identifier: Apache-2.0
"""Lay down a bundle: disk check, stream, verify, unpack beside, check, sync, rename.

Killed anywhere, a host has the old bundle or the new one: the final name appears by one
rename after everything was verified, `current` by another.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import replace

from . import bundle, bundle_progress, bundle_space, progress
from .alone import alone
from .bundle import Observed
from .bundle_stream import Check, Filling, Order, Stats, fill
from .fetch import FetchError
from .host import Host
from .lock import Release
from .manifest import Manifest
from .module import Refused
from .paths import BUNDLE_CURRENT, BUNDLE_ROOT, CACHE_DIR, LAUNCHER, PREFIX

LOCK_WAIT = 1800.0  # s; another run that lays down a bundle is doing our work
SWITCH_WAIT = 60.0  # s; this lock is held for a rename and a look at the processes
_LOCK = "/run/lemonade-deploy-bundle.lock"
# Of its own, so that a rollback does not wait for a lay-down. Taken after the other where both are.
_SWITCH_LOCK = "/run/lemonade-deploy-current.lock"

__all__ = ["Check", "Order", "Stats", "activate", "lay_down", "prune"]


def lay_down(host: Host, order: Order, name: str, stats: Stats) -> None:
    """Make BUNDLE_ROOT/*name* the complete tree of the release. Raises Refused, OSError."""
    ensure_root(host)
    staging = f"{BUNDLE_ROOT}/{name}{bundle.PARTIAL}"
    with _exclusive(host) as lock:
        if _done_by_another(host, order.release, name):
            return
        filling = Filling(host, order, staging, stats, lock)
        kept = filling.kept()
        if not kept:
            filling.erase()
        bundle_space.check_space(host, order.release, kept)
        try:
            manifest = fill(filling)
            began = time.monotonic()
            progress.say(host, f"{order.release.tag}: checked without starting the GPU")
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


def _done_by_another(host: Host, release: Release, name: str) -> bool:
    """Whether the run that was waited for laid down this release. Refused where it was something else."""
    path = f"{BUNDLE_ROOT}/{name}"
    if not os.path.lexists(host.path(path)):
        return False
    tree = bundle.read_tree(host, name)
    if tree and tree.archive == release.archive and not tree.damaged:
        return True
    raise Refused(
        f"{path} was made by another run meanwhile, and is not the locked release {release.tag}.",
        "Two runs with different lock files? Agree on one, then run the same command again.",
    )


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
    """Point `current` at a complete tree, in one step that is on the disk afterwards.

    Raises Refused where the tree is gone.
    """
    with _switching(host):
        if bundle.read_tree(host, name) is None:
            raise Refused(
                f"The bundle {BUNDLE_ROOT}/{name} is gone: another run removed it meanwhile.",
                "`current` was not changed. Run the same command again.",
            )
        stamp = host.path(f"{BUNDLE_ROOT}/{name}/{bundle.ACTIVATED}")
        with open(stamp, "w", encoding="utf-8"):
            os.utime(stamp)
        bundle_space.erase(host.path(f"{BUNDLE_ROOT}/{name}/{bundle.ROLLED_BACK}"))
        link = host.path(BUNDLE_CURRENT)
        bundle_space.erase(f"{link}{bundle.PARTIAL}")
        os.symlink(name, f"{link}{bundle.PARTIAL}")
        os.replace(f"{link}{bundle.PARTIAL}", link)
        sync_folder(host, BUNDLE_ROOT)


def prune(host: Host, observed: Observed, active: str, keep: int) -> None:
    """Remove the trees that are superfluous now. *observed*: the host as it was when this was planned.

    The lay-down in between takes minutes, in which a process may begin to run in a tree, or
    somebody go back to one. Trees that came meanwhile are not ours to judge.
    """
    before = {tree.name: tree for tree in observed.trees}
    there = (bundle.read_tree(host, name) for name in before)
    trees = tuple(replace(tree, damaged=tree.damaged or before[tree.name].damaged) for tree in there if tree)
    used = [tree for tree in trees if tree.activated > before[tree.name].activated and tree.name != active]
    last = max(used, key=lambda tree: tree.activated).name if used else observed.current
    now = replace(observed, trees=trees, current=last, mapped=bundle.mapped_trees(host))
    for tree in bundle.superfluous(now, active, keep):
        remove_tree(tree.name, host)


def remove_tree(name: str, host: Host) -> None:
    """Remove a tree; it first loses its name, so that half of one is never taken for whole.

    One that `current` names, or a process has mapped, stays.
    """
    doomed = host.path(f"{BUNDLE_ROOT}/{name}.old{bundle.PARTIAL}")
    with _exclusive(host):
        bundle_space.erase(doomed)
        with _switching(host):
            if name == host.readlink(BUNDLE_CURRENT) or name in bundle.mapped_trees(host):
                return
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


def _exclusive(host: Host) -> contextlib.AbstractContextManager[int]:
    """One run at a time lays down or removes; the lock ends with the last process that holds it."""
    return alone(host, _LOCK, LOCK_WAIT, "laying down a bundle")


def _switching(host: Host) -> contextlib.AbstractContextManager[int]:
    """One run at a time changes `current` or takes a tree its name."""
    return alone(host, _SWITCH_LOCK, SWITCH_WAIT, "switching bundles")
