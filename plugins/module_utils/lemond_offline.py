# SPDX-License-Identifier: Apache-2.0
"""lemond on a host without internet: which models it can load there at all.

Every load of a model whose config.json names no quantisation asks https://huggingface.co, offline or not,
and fails where that does not answer (vllm_server.cpp:138-189; seen on 2026.39). Nothing of that is
configurable, and the kit changes no CA and no /etc/hosts of a user's machine for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from . import hub_cache
from .host import Host
from .lemond_models import BUILT_IN, wanted_from
from .module import Refused

_REMEDY = "Set lemonade_server_daemon to vllm (auto chooses it with lemonade_server_offline)"


def check(host: Host, models: Sequence[Mapping[str, Any]]) -> None:
    """Raises Refused for the first wanted vLLM model that lemond could not load without the internet."""
    for entry in models:
        model = wanted_from(entry)
        checkpoint = model.checkpoint or BUILT_IN.get(model.name, "")
        if model.recipe != "vllm" or not checkpoint:
            continue
        if not hub_cache.complete(host, checkpoint):
            raise Refused(
                f"{model.name} ({checkpoint}) is not on the host; lemonade_server_offline forbids downloads.",
                f"Put it into {hub_cache.place(checkpoint)}, or download it before by a run that may.",
            )
        if not quantised(host, checkpoint):
            raise Refused(
                f"{model.name} is not quantised: lemond asks huggingface.co on every load of such a model, "
                "offline or not, and fails where it gets no answer.",
                f"{_REMEDY}, or choose a quantised model.",
            )


def quantised(host: Host, checkpoint: str) -> bool:
    """Whether config.json says so in the way that lemond looks for."""
    folder = hub_cache.snapshot(host, checkpoint)
    try:
        config = json.loads(host.read(f"{folder}/config.json") or "{}")
        return bool((config.get("quantization_config") or {}).get("quant_method"))
    except (ValueError, AttributeError):  # no JSON, or not of a configuration's form
        return False
