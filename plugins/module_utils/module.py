# SPDX-License-Identifier: Apache-2.0
"""The thin rim between a module and AnsibleModule: plan, apply, result, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .change import Change, PlanNotEmpty, carry_out, result
from .host import CommandFailed, Host


class Refused(Exception):
    """The host is in a state that must not be touched: says what was found.

    ``remedy`` says what to do next; both reach the user word for word.
    """

    def __init__(self, found: str, remedy: str = "") -> None:
        self.found = found
        self.remedy = remedy
        super().__init__(f"{found} {remedy}".strip())


class AnsibleModuleLike(Protocol):
    """The part of AnsibleModule used here (the domain imports nothing of Ansible)."""

    check_mode: bool

    def exit_json(self, **kwargs: Any) -> None:
        """End the module well."""

    def fail_json(self, msg: str, **kwargs: Any) -> None:
        """End the module with an error."""


def run_module(
    module: AnsibleModuleLike,
    layer: str,
    plan: Callable[[], Sequence[Change]],
    host: Host,
    extra: Callable[[list[Change]], dict[str, Any]] = lambda _changes: {},
) -> None:
    """Plan, apply outside check mode, and end the module with one shape of result.

    A failure returns ``failure: {layer, task, message, remedy}`` beside ``msg``.
    """
    try:
        changes = carry_out(plan, host, module.check_mode)
        returned = result(changes, **extra(changes))
    except Refused as refusal:
        fail(module, layer, refusal.found, refusal.remedy)
    except (CommandFailed, PlanNotEmpty, OSError) as error:
        fail(module, layer, str(error))
    else:
        module.exit_json(**returned)


def fail(module: AnsibleModuleLike, layer: str, message: str, remedy: str = "", **extra: Any) -> None:
    """fail_json in the shape that the controller reads (``failure``)."""
    module.fail_json(
        msg=f"{message} {remedy}".strip(),
        failure={"layer": layer, "message": message, "remedy": remedy},
        **extra,
    )
