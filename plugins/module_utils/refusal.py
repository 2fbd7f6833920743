# SPDX-License-Identifier: Apache-2.0
"""How a module says no: a leaf of its own, so that what only looks need not load what changes."""

from __future__ import annotations

from typing import Any, Protocol

from .scrub import addresses


class Refused(Exception):
    """The host is in a state that must not be touched: says what was found.

    ``remedy`` says what to do next; both reach the user word for word. ``kind`` is the finding that
    doctor shows for it.
    """

    def __init__(self, found: str, remedy: str = "", kind: str = "no-decision") -> None:
        self.found = found
        self.remedy = remedy
        self.kind = kind
        super().__init__(f"{found} {remedy}".strip())


class AnsibleModuleLike(Protocol):
    """The part of AnsibleModule used here (the domain imports nothing of Ansible)."""

    check_mode: bool

    def exit_json(self, **kwargs: Any) -> None:
        """End the module well."""

    def fail_json(self, msg: str, **kwargs: Any) -> None:
        """End the module with an error."""


def fail(module: AnsibleModuleLike, layer: str, message: str, remedy: str = "", **extra: Any) -> None:
    """fail_json in the shape that the controller reads (``failure``), without passwords in addresses."""
    message, remedy = addresses(message), addresses(remedy)
    module.fail_json(
        msg=f"{message} {remedy}".strip(),
        failure={"layer": layer, "message": message, "remedy": remedy},
        **extra,
    )
