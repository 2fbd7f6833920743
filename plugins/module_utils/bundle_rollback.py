# SPDX-License-Identifier: Apache-2.0
"""Back to a previous bundle that is still on the host: nothing is fetched.

The tree that is left gets a stamp that names its successor. Asked again, the host is where
it should be: without the stamp a second call would go forward to the bundle one fled from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from . import bundle, bundle_install, bundle_service, restart_mark, vllm_home
from .bundle import Tree
from .change import Call, Change
from .host import Host
from .module import Refused
from .paths import BUNDLE_CURRENT, BUNDLE_ROOT

LAYER = bundle_service.LAYER


@dataclass(frozen=True)
class State:
    """Trees on the host; ``rolled_back``: name of a tree that was left, and of its successor.

    ``set_up``: the daemon there, "" for none.
    """

    trees: tuple[Tree, ...] = ()
    current: str | None = None
    rolled_back: dict[str, str] = field(default_factory=dict)
    set_up: str = ""
    restart_due: bool = False


def observe(host: Host) -> State:
    """Read records, stamps and the link; no file of a tree. Raises Refused where lemond installs vLLM."""
    if vllm_home.by_lemond(host):
        raise Refused(
            "lemond installs vLLM itself here (vllm_rocm_installer: lemond), and keeps no previous one.",
            "Name the earlier release in vllm_rocm_release and run the role lemonade_server.",
        )
    trees = tuple(tree for tree in (bundle.read_tree(host, n) for n in host.listdir(BUNDLE_ROOT)) if tree)
    stamps = {tree.name: host.read(f"{tree.path}/{bundle.ROLLED_BACK}") for tree in trees}
    return State(
        trees=trees,
        current=host.readlink(BUNDLE_CURRENT),
        rolled_back={name: text.strip() for name, text in stamps.items() if text is not None},
        set_up=bundle_service.set_up(host),
        restart_due=restart_mark.due(host),
    )


def target(state: State, to: str = "") -> Tree:
    """The tree that shall be current. *to*: its tag or folder; "" is the previous one.

    Raises Refused where there is none to go to.
    """
    if to:
        return _named(state, to)
    here = next((tree for tree in state.trees if tree.name == state.current), None)
    left = {name for name in state.rolled_back if name != state.current}
    if here and any(state.rolled_back[name] == here.name for name in left):
        return here
    others = [tree for tree in state.trees if tree.name not in {state.current, *left}]
    usable = [tree for tree in others if tree.activated and not tree.damaged]
    if not usable:
        raise Refused(
            f"There is no previous bundle to go back to below {BUNDLE_ROOT} (there: {_told(state)}).",
            "Name the release in vllm_rocm_release and run site.yml; vllm_rocm_keep says how many stay.",
        )
    return max(usable, key=lambda tree: tree.activated)


def _named(state: State, to: str) -> Tree:
    matching = [tree for tree in state.trees if to in (tree.name, tree.tag) and not tree.damaged]
    if not matching:
        raise Refused(
            f"No sound bundle {to} is on this host (there: {_told(state)}).",
            "Name one of these, or the release in vllm_rocm_release and run site.yml.",
        )
    # Of two builds of a tag the one that is current stays, else the one used last.
    return max(matching, key=lambda tree: (tree.name == state.current, tree.name == to, tree.activated))


def _told(state: State) -> str:
    names = [
        tree.name + (" (current)" if tree.name == state.current else " (damaged)" if tree.damaged else "")
        for tree in state.trees
    ]
    return ", ".join(names) or "none"


def plan_rollback(state: State, to: str = "") -> list[Change]:
    """The swap, and the restart of lemond where the kit set it up. Pure. Raises Refused."""
    return _plan(state, target(state, to))


def _plan(state: State, wanted: Tree) -> list[Change]:
    changes: list[Change] = []
    if wanted.name != state.current:
        # Forward again to a bundle that was left is no flight from the present one.
        left = None if wanted.name in state.rolled_back else state.current
        leave = partial(_leave, left, wanted.name)
        swap = Call(lambda host: bundle_install.activate(host, wanted.name))
        changes.append(
            Change(
                LAYER,
                "current bundle",
                "link",
                f"{BUNDLE_CURRENT} -> {wanted.name}",
                before=f"{state.current}\n" if state.current else None,
                after=f"{wanted.name}\n",
                operations=(Call(leave), *(bundle_service.marked(swap) if state.set_up else (swap,))),
            )
        )
    if state.set_up and (changes or state.restart_due):
        changes.append(bundle_service.restart(state.set_up))
    return changes


def planner(host: Host, to: str = "") -> Callable[[], list[Change]]:
    """A plan to be made before and after the swap: where to go is decided once."""
    goal: list[str] = []

    def plan() -> list[Change]:
        state = observe(host)
        goal[:] = goal or [target(state, to).name]
        # By its folder alone: that of a tag's first build is the tag, which a later build has as well.
        there = {tree.name: tree for tree in state.trees}
        return _plan(state, there.get(goal[0]) or target(state, goal[0]))

    return plan


def _leave(old: str | None, new: str, host: Host) -> None:
    """Stamp the tree that is left; a dangling link has none."""
    if old and host.is_dir(f"{BUNDLE_ROOT}/{old}"):
        host.write(f"{BUNDLE_ROOT}/{old}/{bundle.ROLLED_BACK}", new + "\n")


def public(tree: Tree) -> dict[str, str]:
    """The result key ``bundle``."""
    return {"tag": tree.tag, "path": tree.path, "digest": f"sha256:{tree.digest}"}
