# SPDX-License-Identifier: Apache-2.0
"""A finding, and the registry of the kinds there are (:mod:`.finding_kinds`)."""

from __future__ import annotations

from typing import NamedTuple

from .finding_kinds import ERROR, INFO, WARNING, Kind
from .finding_kinds_driver import DRIVER
from .finding_kinds_host import HOST
from .scrub import addresses

__all__ = ["ERROR", "INFO", "REGISTRY", "WARNING", "Finding", "Kind", "finding", "printable"]


class Finding(NamedTuple):
    """One thing found on a host. ``found`` names file and line, ``source`` the evidence."""

    id: str
    severity: str
    found: str
    remedy: str
    source: str

    def public(self) -> dict[str, str]:
        """As JSON; bytes that are no text are shown as escapes."""
        return {
            "id": self.id,
            "severity": self.severity,
            "found": printable(self.found),
            "remedy": printable(self.remedy),
            "source": printable(self.source),
        }


REGISTRY: dict[str, Kind] = {kind.id: kind for kind in (*DRIVER, *HOST)}


def finding(
    kind: str, found: str, source: str, *, severity: str | None = None, remedy: str | None = None
) -> Finding:
    """A finding of a registered kind; severity and remedy are the kind's unless given. Raises KeyError.

    An empty *remedy* says that nothing is to be done.
    """
    known = REGISTRY[kind]
    return Finding(
        known.id, severity or known.severity, found, known.remedy if remedy is None else remedy, source
    )


def printable(text: str) -> str:
    """*text* for people and reports: bytes that were no UTF-8 as escapes, passwords in URIs left out."""
    shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return addresses(shown)
