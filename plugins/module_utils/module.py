# SPDX-License-Identifier: Apache-2.0
"""The thin rim between a module and AnsibleModule: plan, apply, result, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from . import progress
from .alone import alone
from .change import Change, PlanNotEmpty, carry_out, result
from .host import CommandFailed, Host
from .refusal import AnsibleModuleLike, Refused, fail

SYSTEM_LOCK = "/run/lemonade-deploy-system.lock"  # of driver, kernel and what their boot needs
LOCK_WAIT = 3600.0  # s; the other run may fetch a kernel and build a driver for it

__all__ = ["SYSTEM_LOCK", "AnsibleModuleLike", "Refused", "fail", "run_module"]


def run_module(
    module: AnsibleModuleLike,
    layer: str,
    plan: Callable[[], Sequence[Change]],
    host: Host,
    extra: Callable[[list[Change]], dict[str, Any]] = lambda _changes: {},
    lock: str = "",
    made: list[Change] | None = None,
) -> None:
    """Plan, apply outside check mode, and end the module with one shape of result.

    A failure returns ``failure: {layer, task, message, remedy}`` beside ``msg``, and the changes that were
    finished before it; *made* takes them for an exception that the caller knows. *lock*: of work that two
    runs must not do at once.
    """
    made = [] if made is None else made
    try:
        with (
            one_at_a_time(module, host, lock),
            progress.told(host, not module.check_mode),
        ):
            changes = carry_out(plan, host, module.check_mode, made)
            returned = result(changes, **extra(changes))
    except Refused as refusal:
        fail(module, layer, refusal.found, refusal.remedy, **result(made))
    except (CommandFailed, PlanNotEmpty, OSError) as error:
        fail(module, layer, str(error), **result(made))
    else:
        module.exit_json(**returned)


def one_at_a_time(
    module: AnsibleModuleLike, host: Host, lock: str
) -> AbstractContextManager[int] | AbstractContextManager[None]:
    """Wait for another run's work of that kind: the module of a killed controller lives on, too.

    Check mode changes nothing and does not wait. Raises Refused.
    """
    if module.check_mode or not lock:
        return nullcontext()
    return alone(host, lock, LOCK_WAIT, "changing driver or kernel")
