# SPDX-License-Identifier: Apache-2.0
"""Bundles on a host: what is installed, what is wanted, and the changes between the two.

Layout: BUNDLE_ROOT/<tag>/ holds a tree and, written last, its record; `current` names one
of them. A tree is never changed in place: another build of a tag that is installed (a lock
that was renewed, a damaged tree) goes to <tag>.2 and so on. `<name>.partial` is unfinished.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from . import bundle_layout, bundle_service, dpkg, restart_mark
from .bundle_progress import belongs
from .host import Host
from .lock import Release
from .manifest import OWN_PREFIX, of_tree
from .paths import BUNDLE_CURRENT, BUNDLE_ROOT, CACHE_DIR, LAUNCHER

RECORD = OWN_PREFIX + ".json"
MANIFEST = OWN_PREFIX + ".manifest"
ACTIVATED = OWN_PREFIX + ".activated"
ROLLED_BACK = OWN_PREFIX + ".rolled-back"  # names the tree that took over
PARTIAL = ".partial"
RECORD_SCHEMA = "lemonade-deploy/bundle/1"

_MAPPED = re.compile(re.escape(BUNDLE_ROOT) + r"/([^/\n]+)/")

LAUNCHER_TEXT = f"""\
#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Written by lemonade-deploy. Lemonade starts vLLM through this file (vllm.rocm_bin). The link is
# resolved once: an engine that runs stays in its own folder when `current` is swapped.
set -eu
if ! bundle=$(readlink -e {BUNDLE_CURRENT}); then
    echo "lemonade-deploy: no vLLM bundle is active ({BUNDLE_CURRENT})" >&2
    exit 127
fi
export PYTHONNOUSERSITE=1
exec "$bundle/{bundle_layout.SERVER}" "$@"
"""


@dataclass(frozen=True)
class Tree:
    """A complete tree. ``name`` is its folder; ``archive`` and ``digest`` as in the lock file;
    ``activated`` is when it last became current (seconds since 1970, 0: never).
    """

    name: str
    tag: str
    archive: str
    digest: str
    size: int
    activated: float = 0.0
    damaged: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Its folder on the host."""
        return f"{BUNDLE_ROOT}/{self.name}"


@dataclass(frozen=True)
class Observed:
    """What of bundles is on a host; ``current`` is the name that the link gives.

    ``kept``: folder with a part of the wanted tree, with which the next run goes on, or "".
    ``serving``: the daemon that runs and must notice another bundle; asked only where that may come.
    """

    trees: tuple[Tree, ...] = ()
    names: frozenset[str] = frozenset()
    current: str | None = None
    leftovers: tuple[str, ...] = ()
    launcher: bool = False
    missing_packages: tuple[str, ...] = ()
    mapped: frozenset[str] = frozenset()
    serving: str = ""
    restart_due: bool = False
    kept: str = ""


def observe(host: Host, release: Release, packages: tuple[str, ...], verify: bool = False) -> Observed:
    """Read the host: records, links and a few stat calls.

    No file of a tree is read, unless *verify* asks to compare all of the wanted one.
    """
    names = host.listdir(BUNDLE_ROOT)
    trees = tuple(tree for tree in (read_tree(host, name) for name in names) if tree)
    if verify:
        trees = tuple(verified(host, tree) if _is(tree, release) else tree for tree in trees)
    wanted = next((tree for tree in trees if _is(tree, release)), None)
    current, due = host.readlink(BUNDLE_CURRENT), restart_mark.due(host)
    settled = wanted is not None and wanted.name == current and not due
    unfinished = f"{BUNDLE_ROOT}/{_free_name(names, release)}{PARTIAL}"
    goes_on = wanted is None and release.tree and belongs(host.path(unfinished), release.archive)
    kept = unfinished if goes_on else ""
    return Observed(
        trees=trees,
        names=frozenset(names),
        current=current,
        leftovers=(*(path for path in _partials(names) if path != kept), *_downloads(host, release, wanted)),
        kept=kept,
        launcher=launcher_written(host),
        missing_packages=missing_packages(host, packages),
        mapped=mapped_trees(host) if any(tree != wanted for tree in trees) else frozenset(),
        serving="" if settled else bundle_service.serving(host),
        restart_due=due,
    )


def read_tree(host: Host, name: str) -> Tree | None:
    """The tree in a folder, or None where there is no valid record."""
    text = host.read(f"{BUNDLE_ROOT}/{name}/{RECORD}")
    if text is None or name.endswith(PARTIAL) or host.readlink(f"{BUNDLE_ROOT}/{name}") is not None:
        return None
    try:
        record = json.loads(text)
        tree = Tree(
            name,
            record["tag"],
            record["archive"],
            record["tree"]["digest"],
            record["tree"]["size"],
            activated(host, name),
            tuple(bundle_layout.missing(host.path(f"{BUNDLE_ROOT}/{name}"), record["family"])),
        )
    except (ValueError, KeyError, TypeError):
        return None
    return tree


def activated(host: Host, name: str) -> float:
    """When a tree last became current: the time of its stamp."""
    try:
        return os.stat(host.path(f"{BUNDLE_ROOT}/{name}/{ACTIVATED}")).st_mtime
    except FileNotFoundError:
        return 0.0


def verified(host: Host, tree: Tree) -> Tree:
    """The tree, marked as damaged where a file is not what was laid down (reads gigabytes)."""
    text = host.read(f"{tree.path}/{MANIFEST}") or ""
    if hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest() != tree.digest:
        return replace(tree, damaged=("the manifest is not the one that was laid down",))
    # More files are no damage: Python may have cached bytecode for root.
    there = set(of_tree(host.path(tree.path)).lines())
    lost = [line for line in text.split("\n") if line and line not in there]
    return replace(tree, damaged=tuple(lost[:5])) if lost else tree


def _is(tree: Tree, release: Release) -> bool:
    return tree.tag == release.tag and tree.archive == release.archive and not tree.damaged


def _partials(names: list[str]) -> list[str]:
    return [f"{BUNDLE_ROOT}/{name}" for name in names if name.endswith(PARTIAL)]


def _downloads(host: Host, release: Release, installed: Tree | None) -> list[str]:
    """Cached parts that no run will need again; those of the wanted release wait for it."""
    useful = None if installed else release.tag
    return [f"{CACHE_DIR}/{name}" for name in host.listdir(CACHE_DIR) if name != useful]


def launcher_written(host: Host) -> bool:
    """Whether the launcher is there with our text and may be executed."""
    if host.read(LAUNCHER) != LAUNCHER_TEXT:
        return False
    return os.stat(host.path(LAUNCHER)).st_mode & 0o777 == 0o755


def missing_packages(host: Host, packages: tuple[str, ...]) -> tuple[str, ...]:
    """Those of *packages* that dpkg does not have installed."""
    if not packages:
        return ()
    known = dpkg.packages(host)
    return tuple(name for name in packages if name not in known or known[name].state != "installed")


def mapped_trees(host: Host) -> frozenset[str]:
    """Names of trees that a running process has mapped, executes or stands in."""
    names: set[str] = set()
    for process in host.glob("/proc/[0-9]*"):
        texts = [host.read(f"{process}/maps") or ""]
        texts += [f"{host.readlink(f'{process}/{link}') or ''}/" for link in ("exe", "cwd")]
        for text in texts:
            names.update(_MAPPED.findall(text))
    return frozenset(names)


def installed_tree(observed: Observed, release: Release) -> Tree | None:
    """The sound tree of exactly this release, or None."""
    return next((tree for tree in observed.trees if _is(tree, release)), None)


def folder_name(observed: Observed, release: Release) -> str:
    """The folder of the release: the one it is in, else the first free of <tag>, <tag>.2, …"""
    tree = installed_tree(observed, release)
    return tree.name if tree else _free_name(observed.names, release)


def _free_name(names: Iterable[str], release: Release) -> str:
    number, name = 1, release.tag
    while name in names:
        number += 1
        name = f"{release.tag}.{number}"
    return name


def superfluous(observed: Observed, active: str, keep: int) -> list[Tree]:
    """Trees to remove once *active* is current: damaged ones, and all but *keep* previous ones.

    The one that `current` names now counts as the newest of the previous; a tree that a
    running process has mapped stays.
    """
    others = [tree for tree in observed.trees if tree.name != active]
    sound = [tree for tree in others if not tree.damaged]
    sound.sort(key=lambda tree: (tree.name == observed.current, tree.activated), reverse=True)
    kept = {tree.name for tree in sound[:keep]}
    return [tree for tree in others if tree.name not in kept | observed.mapped]


def public(observed: Observed, release: Release) -> dict[str, str]:
    """The result key ``bundle``: tag, versioned folder, manifest digest ("" where only a run knows it)."""
    tree = installed_tree(observed, release)
    digest = tree.digest if tree else release.tree.digest if release.tree else ""
    return {
        "tag": release.tag,
        "path": f"{BUNDLE_ROOT}/{folder_name(observed, release)}",
        "digest": f"sha256:{digest}" if digest else "",
    }
