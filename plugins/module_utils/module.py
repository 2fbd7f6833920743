# SPDX-License-Identifier: Apache-2.0
"""The thin rim between a module and AnsibleModule: plan, apply, result, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import progress
from .change import Change, PlanNotEmpty, carry_out, result
from .host import CommandFailed, Host
from .refusal import AnsibleModuleLike, Refused, fail

__all__ = ["AnsibleModuleLike", "Refused", "fail", "run_module"]


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
        with progress.told(host, not module.check_mode):
            changes = carry_out(plan, host, module.check_mode)
            returned = result(changes, **extra(changes))
    except Refused as refusal:
        fail(module, layer, refusal.found, refusal.remedy)
    except (CommandFailed, PlanNotEmpty, OSError) as error:
        fail(module, layer, str(error))
    else:
        module.exit_json(**returned)
