# SPDX-License-Identifier: Apache-2.0
"""Find the wanted release in the lock, or say how to get it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .lock import UNQUALIFIED, Release, parse
from .module import Refused
from .releases import KNOWN_BAD, split


def locked_release(lock: Any, file: str, tag: str, family: str, inventory: str = "") -> Release:
    """The lock's entry for *tag*. Raises Refused (no file, no entry, other family), LockError."""
    release = None if lock is None else parse(lock, file).get(tag)
    if release is None:
        raise not_locked(file, tag, family, inventory, there=lock is not None)
    if release.family != family:
        raise Refused(
            f"{file}: releases.{tag}.family: is {release.family}, this host's GPU needs {family}.",
            "Choose the release with vllm_rocm_release; its family is added by itself.",
        )
    return release


def not_locked(file: str, tag: str, family: str, inventory: str, there: bool) -> Refused:
    """Why *tag* is not laid down: the lock *file* lacks it, or is not *there*."""
    remedy = _remedy(tag, family, inventory)
    if there:
        return Refused(f"{file} has no entry for release {tag}, so nothing vouches for it.", remedy)
    return Refused(f"There is no lock file {file} on the controller, so nothing vouches for {tag}.", remedy)


def unqualified(release: Release, accepted: Sequence[str]) -> str:
    """A remark on a release that is known to fail but accepted, else "".

    Raises Refused where *accepted* (release names with or without the family) does not name it.
    """
    base = split(release.tag)[0]
    why = KNOWN_BAD.get(base, "")
    if not why and release.qualification == UNQUALIFIED:
        why = "upstream's own hardware tests call it unqualified"
    if not why:
        return ""
    if release.tag in accepted or base in accepted:
        return f"release {release.tag} was accepted by vllm_rocm_accept_unqualified, although {why}"
    raise Refused(
        f"Release {release.tag} is known to fail: {why}.",
        "Leave vllm_rocm_release empty for the newest qualified release, or take it all the same with "
        f"`vllm_rocm_accept_unqualified: [{base}]`.",
    )


def _remedy(tag: str, family: str, inventory: str) -> str:
    base = split(tag)[0]
    place = f" -i {inventory}" if inventory else ""
    command = f"lemonade-deploy depot lock {base} --gfx {family}{place}"
    return f"Run `{command}` once, look at what it locks, and commit the file."
