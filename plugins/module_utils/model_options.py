# SPDX-License-Identifier: Apache-2.0
"""Options that the kit saved with models in lemond, so that it can take back what is no longer wanted.

lemond keeps options for good (recipe_options.json), also of a model that left ``models_wanted``: it would
come back with an old context size. What a user saved by hand is not ours and stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import paths
from .host import Host

if TYPE_CHECKING:
    from .lemond_models import Wanted

STATE = paths.STATE_DIR + "/models.json"


def remembered(host: Host) -> dict[str, dict[str, Any]]:
    """Options by model, as the last run left them."""
    try:
        told = json.loads(host.read(STATE) or "{}")
    except ValueError:
        return {}
    entries = told.items() if isinstance(told, dict) else ()
    return {name: options for name, options in entries if isinstance(options, dict)}


def stale(
    before: Mapping[str, Mapping[str, Any]],
    wanted: Iterable[Wanted],
    saved: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, None]]:
    """By model the options to take back: ours, no longer wanted, and still saved with our value."""
    now = {model.name: model.options for model in wanted}
    found: dict[str, dict[str, None]] = {}
    for name, options in before.items():
        for key, value in options.items():
            if key not in now.get(name, {}) and saved.get(name, {}).get(key) == value:
                found.setdefault(name, {})[key] = None
    return found


def remember(host: Host, wanted: Iterable[Wanted]) -> None:
    """Note what is saved now. No change of its own: it only repeats what the changes did."""
    text = json.dumps({model.name: model.options for model in wanted if model.options}, sort_keys=True)
    if host.read(STATE) != text and (text != "{}" or host.exists(STATE)):
        host.write(STATE, text, 0o644)
