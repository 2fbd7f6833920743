# SPDX-License-Identifier: Apache-2.0
"""One change, and how a plan of them is shown or carried out.

A module makes a plan (pure: facts and wishes in, changes out); check mode,
``--diff``, the JSON and the report all show that plan, and a run applies it.
After that the plan is made again and must be empty.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import progress
from .host import Host
from .scrub import addresses, scrub


class Operation(Protocol):
    """Something that can be done to a host; raises OSError or CommandFailed."""

    def apply(self, host: Host) -> None:
        """Do it."""


@dataclass(frozen=True)
class WriteFile:
    """Put *content* in a file, atomically."""

    path: str
    content: str
    mode: int = 0o644
    owner: tuple[int, int] | None = None

    def apply(self, host: Host) -> None:
        """Write the file."""
        host.write(self.path, self.content, self.mode, self.owner)


@dataclass(frozen=True)
class Remove:
    """Remove a file, a link or a whole folder; fine where it is gone already."""

    path: str

    def apply(self, host: Host) -> None:
        """Remove it."""
        real = host.path(self.path)
        if os.path.isdir(real) and not os.path.islink(real):
            shutil.rmtree(real)
        elif os.path.lexists(real):
            os.unlink(real)


@dataclass(frozen=True)
class Link:
    """Point a symbolic link at *target*, atomically."""

    path: str
    target: str

    def apply(self, host: Host) -> None:
        """Swap the link."""
        real = host.path(self.path)
        os.makedirs(os.path.dirname(real), exist_ok=True)
        temporary = f"{real}.new"
        if os.path.lexists(temporary):
            os.unlink(temporary)
        os.symlink(self.target, temporary)
        os.replace(temporary, real)


@dataclass(frozen=True)
class Command:
    """Run a program; a non-zero code is an error. ``timeout`` in seconds."""

    argv: tuple[str, ...]
    stdin: str | None = None
    timeout: float | None = 1800

    def apply(self, host: Host) -> None:
        """Run it."""
        host.run(self.argv, stdin=self.stdin, timeout=self.timeout)


@dataclass(frozen=True)
class Call:
    """Run a function of the host, for what does not fit the other operations."""

    function: Callable[[Host], None]

    def apply(self, host: Host) -> None:
        """Call it."""
        self.function(host)


@dataclass(frozen=True)
class Change:
    """One thing that is, or will be, different.

    ``layer`` is the role's name, ``object`` names the thing without its version,
    ``action`` is a verb; these three are the contract of ``--json``. ``detail`` is for
    people. ``before``/``after`` are texts for ``--diff``. ``operations`` carry it out.
    """

    layer: str
    object: str
    action: str
    detail: str = ""
    before: str | None = None
    after: str | None = None
    operations: tuple[Operation, ...] = field(default=(), compare=False, repr=False)

    def public(self) -> dict[str, str]:
        """The fields that a module returns."""
        return {
            "layer": self.layer,
            "object": self.object,
            "action": self.action,
            "detail": addresses(self.detail),
        }

    def diff(self) -> dict[str, str] | None:
        """This change in the form of Ansible's ``diff`` result, or None. Secrets are left out."""
        if self.before is None and self.after is None:
            return None
        return {
            "before": scrub(self.before or ""),
            "after": scrub(self.after or ""),
            "before_header": self.object,
            "after_header": self.object,
        }


class PlanNotEmpty(Exception):
    """After apply something was still to do: the plan and the operations disagree."""


def apply_all(changes: Sequence[Change], host: Host, made: list[Change] | None = None) -> None:
    """Carry out *changes* in order; each that is done is added to *made*."""
    for change in changes:
        progress.say(host, f"{change.object}: {change.action}")
        for operation in change.operations:
            operation.apply(host)
        if made is not None:
            made.append(change)


def result(changes: Sequence[Change], **extra: Any) -> dict[str, Any]:
    """The result every module of ours returns: changed, changes, diff and *extra*."""
    return {
        "changed": bool(changes),
        "changes": [change.public() for change in changes],
        "diff": [diff for diff in (change.diff() for change in changes) if diff],
        **extra,
    }


def carry_out(
    plan: Callable[[], Sequence[Change]], host: Host, check_mode: bool, made: list[Change] | None = None
) -> list[Change]:
    """Plan; outside check mode apply, plan again and demand that nothing is left.

    Returns the changes, made or predicted; *made* holds those that were finished before an error.
    Raises PlanNotEmpty, OSError, CommandFailed.
    """
    changes = list(plan())
    if check_mode or not changes:
        return changes
    apply_all(changes, host, made)
    left = list(plan())
    if left:
        if made is not None:
            still = {(change.object, change.action) for change in left}
            made[:] = [change for change in made if (change.object, change.action) not in still]
        names = ", ".join(f"{change.object}: {change.action}" for change in left)
        raise PlanNotEmpty(f"applied, but still to do: {names}")
    return changes
