# SPDX-License-Identifier: Apache-2.0
"""Which daemon serves on a host: lemond, or vLLM itself. Read from the kit's own files there."""

from __future__ import annotations

from . import lemond_config, paths, vllm_arguments
from .host import Host

LEMOND = "lemond"
VLLM = "vllm"
UNITS = {LEMOND: "lemond.service", VLLM: "lemonade-vllm.service"}
USER_PREFIX = "user."


def installed(host: Host) -> str:
    """``vllm``, ``lemond``, or "" where the kit set up none. lemond's files stay beside a vLLM's unit."""
    if host.exists(paths.VLLM_UNIT):
        return VLLM
    return LEMOND if host.exists(paths.LEMOND_DEFAULTS) else ""


def endpoint(host: Host) -> str:
    """URL under which the host itself reaches the daemon, by the files on it."""
    if installed(host) != VLLM:
        return lemond_config.read_endpoint(host)
    unit = host.read(paths.VLLM_UNIT) or ""
    return lemond_config.endpoint(
        vllm_arguments.option(unit, "--host") or lemond_config.DEFAULT_HOST,
        int(vllm_arguments.option(unit, "--port") or lemond_config.DEFAULT_PORT),
    )


def served_name(host: Host) -> str:
    """The name of the model that vLLM's unit serves, "" where there is none."""
    return vllm_arguments.option(host.read(paths.VLLM_UNIT) or "", "--served-model-name")
