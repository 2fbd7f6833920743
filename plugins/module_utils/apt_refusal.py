# SPDX-License-Identifier: Apache-2.0
"""Why apt finds no way, in words with a remedy: a hold, a dependency that nothing meets, else apt's own."""

from __future__ import annotations

import re
from collections.abc import Collection

from . import apt_plan
from .host import CommandFailed
from .refusal import Refused

_HELD = re.compile(r"^The following held packages will be changed:\n((?:  .*\n?)+)", re.MULTILINE)
_UNMET = re.compile(r"^The following packages have unmet dependencies:\n((?: .*\n?)+)", re.MULTILINE)
_SHOWN = 4  # lines


def explain(error: CommandFailed, doing: str, asked: Collection[str] = (), otherwise: str = "") -> Refused:
    """What ``apt-get -s`` said, about *doing* ("installing X"). *otherwise*: the other way out.

    *asked*: the packages that were to be installed; that these lack theirs only follows from the rest.
    """
    told = error.done.stdout
    held = _HELD.search(told)
    if held is not None:
        names = " ".join(held[1].split())
        found = f"{', '.join(names.split())} on hold, not by this kit: {doing} would change it"
        return Refused(found, f"`apt-mark unhold {names}`{otherwise}, then run again")
    unmet = _unmet(told)
    if unmet:
        causes = [line for name, line in unmet if name not in asked] or [line for _name, line in unmet]
        return Refused(
            f"{doing} is not possible, dependencies are not met: {'; '.join(causes[:_SHOWN])}",
            "`apt-get --fix-broken install`, or remove the packages that lack something"
            f"{otherwise}, then run again",
        )
    said = "; ".join(apt_plan.errors(error.done.stderr)) or str(error)
    return Refused(f"{doing} is not possible: {said}", f"repair what apt names{otherwise}, then run again")


def _unmet(told: str) -> list[tuple[str, str]]:
    """(package, what it lacks) of each line; the name stands in the first line of a package only."""
    block = _UNMET.search(told)
    found: list[tuple[str, str]] = []
    name = ""
    for line in block[1].splitlines() if block else []:
        first, colon, rest = line.partition(" : ")
        name, lacks = (first.strip(), rest) if colon else (name, line)
        found.append((name, f"{name}: {' '.join(lacks.split())}"))
    return found
