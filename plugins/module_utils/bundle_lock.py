# SPDX-License-Identifier: Apache-2.0
"""Find the wanted release in the lock, or say how to get it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .lock import UNQUALIFIED, Release, parse
from .module import Refused
from .releases import split, unfit


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


def unqualified(release: Release, names: Sequence[str]) -> str:
    """A remark on a release that is known to fail but accepted, else "".

    Raises Refused where *names* (with or without the family) does not hold it.
    """
    why = unfit(split(release.tag)[0], release.qualification == UNQUALIFIED)
    if not why:
        return ""
    if accepted(release.tag, names):
        return f"release {release.tag} was accepted by vllm_rocm_accept_unqualified, although {why}"
    raise known_to_fail(release.tag, why)


def accepted(tag: str, names: Sequence[str]) -> bool:
    """Whether *names* (with or without the family) hold the release."""
    return tag in names or split(tag)[0] in names


def known_to_fail(tag: str, why: str) -> Refused:
    """Why the release *tag* is not taken."""
    return Refused(
        f"Release {tag} is known to fail: {why}.",
        "Leave vllm_rocm_release empty for the newest qualified release, or take it all the same with "
        f"`vllm_rocm_accept_unqualified: [{split(tag)[0]}]`.",
    )


def _remedy(tag: str, family: str, inventory: str) -> str:
    base = split(tag)[0]
    place = f" -i {inventory}" if inventory else ""
    command = f"lemonade-deploy depot lock {base} --gfx {family}{place}"
    return f"Run `{command}` once, look at what it locks, and commit the file."
