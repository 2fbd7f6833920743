# SPDX-License-Identifier: Apache-2.0
"""What argument specs cannot say of a value: ranges and forms. The one place for them on this side.

The roles judge the same on the host; here it is said before a host is touched. Where the domain
has a function for it, that one decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lemonade_deploy.domain import driver_releases, kernels, lemonade_source, memory, releases, trial

WEEK = 604_800  # s; nothing here takes longer, and Python's clocks do not take every number

# Variable → smallest and greatest number (None: no limit).
RANGES: dict[str, tuple[int, int | None]] = {
    "activate_reboot_timeout": (1, WEEK),
    "kernel_confirm_timeout": (trial.MIN_CONFIRM_SECONDS, trial.MAX_CONFIRM_SECONDS),
    "lemonade_server_global_timeout": (1, WEEK),
    "lemonade_server_port": (1, 65535),
    "models_load_timeout": (1, WEEK),
    "models_pull_timeout": (1, WEEK),
    "preflight_min_disk_gib": (0, None),
    "verify_max_tokens": (1, None),
    "verify_timeout": (1, WEEK),
    "vllm_rocm_keep": (0, None),
    "vllm_rocm_lemond_timeout": (60, WEEK),
}


def _driver(text: str) -> str:
    return "" if driver_releases.known_form(text) else "is no release of AMD's repository (31.20, latest)"


def _gtt(text: str) -> str:
    try:
        memory.wanted_pages(text, apu=True, total_kib=0, configured=None)
    except ValueError:
        return "is neither auto nor a whole number of GiB above 0"
    return ""


def _release(text: str) -> str:
    try:
        releases.base_for(text, releases.split(text)[1] or "")
    except ValueError:
        return f"is no release of vllm-rocm (like {releases.DEFAULT_BASE})"
    return ""


def _kernel(text: str) -> str:
    return "" if kernels.parse(text) else "is no kernel release as uname -r shows it (7.0.0-31-generic)"


def _fingerprint(text: str) -> str:
    return _form(r"[0-9A-F]{40}", "is no fingerprint: 40 hexadecimal digits")(lemonade_source.normal(text))


def _form(pattern: str, words: str) -> Callable[[str], str]:
    return lambda text: "" if re.fullmatch(pattern, text) else words


# A mirror's address, or a folder or file on the host.
_PLACE = _form(
    r"https?://[^\s/]+(/\S*)?|(file://)?/\S*",
    "is neither an http(s) address nor an absolute path on the host",
)
_URL = _form(r"https?://[^\s/]+(/\S*)?", "is no http:// or https:// address")

# Variable → what is wrong with a text, empty for nothing. Empty texts ("not set") are judged where
# the role has no meaning for them.
FORMS: dict[str, Callable[[str], str]] = {
    "amdgpu_driver_repo_key_fingerprint": _fingerprint,
    "amdgpu_driver_repo_version": _driver,
    "gpu_memory_gtt_gib": _gtt,
    "gpu_memory_service_user": _form(r"[a-z_][a-z0-9_-]{0,31}", "is no name of a user"),
    "kernel_mainline_key": _PLACE,
    "kernel_mainline_key_fingerprint": _fingerprint,
    "kernel_mainline_url": _PLACE,
    "kernel_version": _kernel,
    "lemonade_server_binary": _form(r"/\S*[^/\s]", "is no absolute path of a file on the host"),
    "lemonade_server_deb_sha256": _form(r"[0-9a-fA-F]{64}", "is no SHA-256: 64 hexadecimal digits"),
    "lemonade_server_ppa": _form(r"[a-z0-9][a-z0-9.+-]*/[a-z0-9][a-z0-9.+-]*", "is not OWNER/NAME"),
    "lemonade_server_ppa_fingerprint": _fingerprint,
    "lemonade_server_ppa_url": _URL,
    "models_folder": _form(r"/\S*", "is no absolute path on the host"),
    "models_hub_url": _URL,
    "vllm_rocm_base_url": _URL,
    "vllm_rocm_depot_url": _URL,
    "vllm_rocm_release": _release,
}
MAY_BE_EMPTY = frozenset(
    {
        "kernel_mainline_key",
        "kernel_version",
        "lemonade_server_binary",
        "lemonade_server_deb_sha256",
        "lemonade_server_ppa_fingerprint",
        "models_folder",
        "vllm_rocm_depot_url",
        "vllm_rocm_release",
    }
)
MIRRORS = "vllm_rocm_mirrors"
CTX_SIZE = "lemonade_server_ctx_size"


def fault(name: str, value: Any) -> str:
    """What is wrong with a *value* of the right type, or an empty text."""
    if name in RANGES:
        low, high = RANGES[name]
        if int(value) < low or (high is not None and int(value) > high):
            return f"is not {f'from {low} to {high}' if high is not None else f'{low} or more'}"
    if name == CTX_SIZE and int(value) < 1 and int(value) != -1:
        return "is neither -1 nor 1 or more"
    if name == MIRRORS:
        return (
            next((wrong for one in value if (wrong := _URL(str(one)))), "") if isinstance(value, list) else ""
        )
    judge = FORMS.get(name)
    text = str(value)
    if judge is None or (not text and name in MAY_BE_EMPTY):
        return ""
    return judge(text)
