# SPDX-License-Identifier: Apache-2.0
"""The plan of the layer vllm_rocm: from what was observed to the changes that are due."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from . import apt, bundle, bundle_install, bundle_service, bundle_space, bundle_stream
from .bundle import Observed, Tree
from .bundle_install import Order, Stats
from .change import Call, Change, WriteFile
from .host import CommandFailed, Host
from .paths import BUNDLE_CURRENT, LAUNCHER

LAYER = bundle_service.LAYER


@dataclass(frozen=True)
class Wanted:
    """What the role asks for; ``keep`` counts previous bundles that stay on the disk."""

    order: Order
    keep: int = 1
    packages: tuple[str, ...] = ()


def plan_bundle(observed: Observed, wanted: Wanted, stats: Stats) -> list[Change]:
    """All changes, in the order in which they are carried out. Pure."""
    release = wanted.order.release
    name = bundle.folder_name(observed, release)
    installed = bundle.installed_tree(observed, release)
    changes = [
        *package_changes(observed.missing_packages),
        *_leftovers(observed),
        *([] if installed else [_install(wanted.order, name, stats)]),
    ]
    if observed.current != name:
        changes.append(_link(observed, name))
    if not observed.launcher:
        operations = (Call(bundle_install.ensure_root), WriteFile(LAUNCHER, bundle.LAUNCHER_TEXT, 0o755))
        changes.append(Change(LAYER, "launcher", "write", LAUNCHER, operations=operations))
    if observed.serving and (observed.restart_due or observed.current != name):
        changes.append(bundle_service.restart(observed.serving))
    doomed = bundle.superfluous(observed, name, wanted.keep)
    if doomed:
        changes.append(_prune(doomed, observed, name, wanted.keep))
    return changes


def refuse_early(host: Host, observed: Observed, wanted: Wanted) -> None:
    """Say before anything is done (and in check mode) that the disk is too small."""
    release = wanted.order.release
    # Leftovers are removed first; how much that frees is only known afterwards.
    if not observed.leftovers and not bundle.installed_tree(observed, release):
        kept = bundle_stream.kept_bytes(host, release, observed.kept) if observed.kept else 0
        bundle_space.check_space(host, release, kept)


def package_changes(names: tuple[str, ...]) -> list[Change]:
    """The change that installs what is missing of the packages that a bundle's compiler needs."""
    if not names:
        return []
    install = Call(lambda host: _install_packages(host, names))
    return [Change(LAYER, "packages", "install", " ".join(names), operations=(install,))]


def _install_packages(host: Host, names: tuple[str, ...]) -> None:
    """Install; where apt's lists are stale or empty, once more with fresh ones."""
    arguments = ("install", "--no-install-recommends", *names)
    try:
        apt.apt_get(host, *arguments)
    except CommandFailed:
        apt.update(host)
        apt.apt_get(host, *arguments)


def _leftovers(observed: Observed) -> list[Change]:
    if not observed.leftovers:
        return []
    operations = tuple(Call(partial(bundle_install.remove, path)) for path in observed.leftovers)
    return [Change(LAYER, "leftovers", "remove", " ".join(observed.leftovers), operations=operations)]


def _install(order: Order, name: str, stats: Stats) -> Change:
    release = order.release
    first = " or ".join(place.url for place in order.sources()[:2])
    detail = f"{release.tag}: {release.size / 1e6:,.0f} MB in {len(release.assets)} file(s) from {first}"
    return Change(
        LAYER,
        "bundle",
        "install",
        detail,
        operations=(Call(lambda host: bundle_install.lay_down(host, order, name, stats)),),
    )


def _link(observed: Observed, name: str) -> Change:
    swap = Call(lambda host: bundle_install.activate(host, name))
    return Change(
        LAYER,
        "current bundle",
        "link",
        f"{BUNDLE_CURRENT} -> {name}",
        before=f"{observed.current}\n" if observed.current else None,
        after=f"{name}\n",
        operations=bundle_service.marked(swap) if observed.serving else (swap,),
    )


def _prune(doomed: list[Tree], observed: Observed, active: str, keep: int) -> Change:
    freed = sum(tree.size for tree in doomed)
    detail = f"{', '.join(tree.name for tree in doomed)} (frees {freed / 1e6:,.0f} MB)"
    operation = Call(lambda host: bundle_install.prune(host, observed, active, keep))
    return Change(LAYER, "old bundles", "remove", detail, operations=(operation,))
