# SPDX-License-Identifier: Apache-2.0
"""What an older lemond left in its home: settings, own models, options, engines.

Up to 11.7 all of it lay below ~/.cache/lemonade; since then it is the unit's StateDirectory and
CacheDirectory (lemonade commit edf2aa529). 11.8.0 simply forgot the old place (issues 3387, 3394), later
ones move it, one that is older still uses it. The folders tell which it is, not a version: where both
hold the same file, somebody's settings would be lost either way, and that is refused.
"""

from __future__ import annotations

import os
import shutil

from .change import Call, Change
from .host import Host
from .lemond_config import STATE_DIR
from .module import Refused

OLD = STATE_DIR + "/.cache/lemonade"
CACHE_DIR = "/var/cache/lemonade"
_ENGINES = "bin"
_PROBE = "/lemonade-deploy-probe"


def left_behind(host: Host) -> dict[str, str]:
    """Old path → new path of all that has to move; empty where nothing does. Raises Refused."""
    if host.readlink(OLD) is not None:
        return {}
    moves = {}
    for name in host.listdir(OLD):
        old = f"{OLD}/{name}"
        if name == _ENGINES and host.is_dir(old):
            # Engine by engine: lemond has made the new folder already where it ran once.
            # What is there already can be fetched again at any time; the old one stays where it is.
            engines = {f"{old}/{below}": f"{CACHE_DIR}/{_ENGINES}/{below}" for below in _engines(host, old)}
            moves.update({source: target for source, target in engines.items() if not host.exists(target)})
        elif name.endswith(".json"):
            moves[old] = f"{STATE_DIR}/{name}"
    both = [old for old, new in moves.items() if host.exists(new) and not _same(host, old, new)]
    if both:
        old = both[0]
        raise Refused(
            f"Two lemonds left their state: {old} and {moves[old]} differ, and only one of them counts.",
            f"Keep the one you want in {moves[old]} and remove the other, then run again. "
            + (f"The same goes for {', '.join(both[1:])}." if both[1:] else ""),
        )
    return moves


def _engines(host: Host, folder: str) -> list[str]:
    """``recipe/backend`` of each engine below *folder*."""
    return [
        f"{recipe}/{backend}"
        for recipe in host.listdir(folder)
        for backend in host.listdir(f"{folder}/{recipe}")
    ]


def _same(host: Host, one: str, other: str) -> bool:
    return host.read_bytes(one) == host.read_bytes(other)


def plan(host: Host, program: str) -> list[Change]:
    """The move, before the first start of our unit. ``program`` is the lemond. Raises Refused."""
    moves = left_behind(host)
    if not moves or uses_old_place(host, program):
        return []
    detail = f"{', '.join(sorted(os.path.relpath(old, OLD) for old in moves))} from {OLD}"
    operations = (Call(lambda host: move(host, moves)),)
    return [Change("lemonade_server", "state of an older lemond", "move", detail, operations=operations)]


def move(host: Host, moves: dict[str, str]) -> None:
    """Carry it out. What is at the new place already is the same: the old copy goes."""
    host.run(["systemctl", "stop", "lemond.service"], timeout=300)
    owner = os.stat(host.path(STATE_DIR))
    for old, new in moves.items():
        source, target = host.path(old), host.path(new)
        if os.path.lexists(target):
            os.unlink(source)
            continue
        for folder in _missing_parents(target):
            os.mkdir(folder, 0o755)
            os.chown(folder, owner.st_uid, owner.st_gid)
        shutil.move(source, target)
    for folder, _folders, _files in os.walk(host.path(OLD), topdown=False):
        if not os.listdir(folder):
            os.rmdir(folder)


def _missing_parents(path: str) -> list[str]:
    missing: list[str] = []
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing


def uses_old_place(host: Host, program: str) -> bool:
    """Whether this lemond knows only the old place. Its help shows the folders that it would use."""
    if not host.exists(program):
        return False  # the one that is installed next will be newer
    as_nobody = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    probe = {"HOME": "/nonexistent", "STATE_DIRECTORY": _PROBE, "CACHE_DIRECTORY": _PROBE}
    return _PROBE not in host.run([*as_nobody, program, "--help"], check=False, env=probe, timeout=20).stdout
