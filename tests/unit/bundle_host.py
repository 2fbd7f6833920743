# SPDX-License-Identifier: Apache-2.0
"""A host in a folder, for tests of the bundle layer; also a program to be killed.

As a program: ``bundle_host.py ROOT URL RELEASE.json KEEP [STEP]`` does what the module does, kills
itself before the STEP-th change of the file system, and prints how many there were.
With AS_DEPOT in the environment URL is a depot.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from nasty import POLICY, Nasty

from lemonade_deploy.domain import bundle
from lemonade_deploy.domain.bundle_install import Check, Order, Stats
from lemonade_deploy.domain.bundle_plan import Wanted, plan_bundle, refuse_early
from lemonade_deploy.domain.bundle_sources import Place
from lemonade_deploy.domain.change import Change, carry_out
from lemonade_deploy.domain.fetch import Policy
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.lock import Release, document, parse
from lemonade_deploy.domain.manifest import of_tree
from lemonade_deploy.domain.paths import BUNDLE_CURRENT, BUNDLE_ROOT, CACHE_DIR

CHANGES = ("open", "os.rename", "os.mkdir", "os.link", "os.symlink", "os.remove", "os.rmdir", "os.chmod")


def no_check(_host: Host, _tree: str, _family: str) -> None:
    """Static checks have tests of their own."""


def triples(changes: list[Change]) -> list[tuple[str, str]]:
    """(object, action) of each change."""
    return [(change.object, change.action) for change in changes]


class Box:
    """One host below *root* and what was asked of it."""

    def __init__(self, root: Path, url: str = "", policy: Policy = POLICY, check: Check = no_check) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.host = Host(str(root))
        self.url, self.policy, self.check = url, policy, check
        self.stats = Stats()
        self.places: tuple[Place, ...] = ()

    def run(
        self, release: Release, keep: int = 1, check_mode: bool = False, verify: bool = False
    ) -> list[tuple[str, str]]:
        """Plan and, outside check mode, apply; gives (object, action) of the changes."""
        self.stats = Stats()
        wanted = Wanted(Order(release, self.url, self.policy, self.check, self.places), keep)

        def plan() -> list[Change]:
            observed = bundle.observe(self.host, release, (), verify)
            refuse_early(self.host, observed, wanted)
            return plan_bundle(observed, wanted, self.stats)

        return triples(carry_out(plan, self.host, check_mode))

    @property
    def current(self) -> str | None:
        """What the link names."""
        return self.host.readlink(BUNDLE_CURRENT)

    def place(self, *names: str) -> Path:
        """A path below the bundles' folder."""
        return Path(self.host.path(BUNDLE_ROOT)).joinpath(*names)

    def cached(self) -> list[str]:
        """Names of the parts that are kept for resuming."""
        return sorted(path.name for path in Path(self.host.path(CACHE_DIR)).glob("*/*"))

    def assert_whole(self, release: Release) -> None:
        """`current` names the locked tree, every byte of it, and nothing else is left."""
        assert self.current is not None
        assert release.tree is not None
        assert of_tree(str(self.place(self.current))).digest() == release.tree.digest
        assert self.host.listdir(BUNDLE_ROOT) == sorted(["current", self.current])
        assert self.cached() == []


def as_json(release: Release) -> str:
    """The lock's entry, for the program below."""
    return json.dumps(document({release.tag: release}))


def serve_chunks(server: Nasty, release: Release, folder: Path) -> None:
    """Make a depot's chunks of a published release and serve them beside it."""
    from lemonade_deploy.depot import pack  # the program that is killed does not wait for it

    place = folder / release.tag
    place.mkdir(parents=True)
    for asset in release.assets:
        (place / asset.name).write_bytes(server.files[f"/{release.tag}/{asset.name}"])
    pack.pack(folder, release)
    for path in place.iterdir():
        server.files[f"/{release.tag}/{path.name}"] = path.read_bytes()


def main(argv: list[str]) -> None:
    """Run once, slowly enough to be killed in any stage."""
    root, url, lock, keep, step = *argv, *["0"][len(argv) - 4 :]
    content: Any = json.loads(Path(lock).read_text())
    (release,) = parse(content).values()
    seen = [0]
    sys.addaudithook(lambda event, arguments: die_at(seen, int(step), root, event, arguments))
    box = Box(Path(root), url)
    if os.environ.get("AS_DEPOT"):
        box.places = (Place("depot", url),)
    box.run(release, int(keep))
    print(seen[0])


def die_at(seen: list[int], step: int, root: str, event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: Python announces renames, links, removals and opened files before they happen."""
    if event not in CHANGES or not any(str(argument).startswith(root) for argument in arguments[:2]):
        return
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return
    seen[0] += 1
    if seen[0] == step:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
