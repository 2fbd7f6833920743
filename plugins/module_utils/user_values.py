# SPDX-License-Identifier: Apache-2.0
"""What no value of the user's may hold: a line break where a file is read by lines, a secret in an argument.

systemd ends a line of a unit at a line feed, a carriage return and a NUL (read_line in its fileio.c),
whatever the quotes: a value with one could add directives, which run as root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from . import vllm_arguments
from .refusal import Refused

ENVIRONMENT = "lemonade_server_environment"
ARGUMENTS = "lemonade_server_vllm_args"
SETTINGS = "lemonade_server_settings"
MODELS = "models_wanted"
# Never written into a file that is read by lines: JSON, or split into words first.
_MANY_LINES = (ARGUMENTS, SETTINGS, MODELS, "verify_prompt")
_BREAK = re.compile("[\n\r\0]")
# systemd drops an assignment with any of these, and says so in its journal only.
_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def fault(name: str, value: Any) -> str:
    """What is wrong with the *value* of the role variable *name*, without the value itself; or ""."""
    if name == ENVIRONMENT and isinstance(value, Mapping):
        return environment_fault(value)
    if name not in _MANY_LINES:
        return "contains a line break" if any(_BREAK.search(text) for text in _texts(value)) else ""
    if name == "verify_prompt":
        return ""
    secret = next((found for line in argument_lines(name, value) if (found := secret_in(line))), "")
    return (
        f"holds {secret}, which every user of the host could read; "
        "use lemonade_server_api_key or lemonade_server_hf_token"
        if secret
        else ""
    )


def environment_fault(environment: Mapping[Any, Any]) -> str:
    """Why *environment* cannot stand in a unit file; or ""."""
    for name, value in environment.items():
        if not _NAME.fullmatch(str(name)):
            return f"holds {str(name)[:40]!r}, which is no name of an environment variable"
        if "\n" in str(value) or _CONTROL.search(str(value)):
            return f"contains a line break, or another control character, in {name}"
    return ""


def secret_in(line: str) -> str:
    """The first option of an engine's arguments that carries a secret; or ""."""
    try:
        words = vllm_arguments.split(line)
    except Refused:
        words = tuple(line.split())  # whether it can be read is the engine's to say
    return next((found for word in words if (found := vllm_arguments.secret(word))), "")


def argument_lines(name: str, value: Any) -> Iterator[str]:
    """The lines of arguments in a variable: itself, a model's ``args``, ``args`` anywhere in the settings."""
    if name == ARGUMENTS:
        yield str(value or "")
    elif name == MODELS:
        for model in value if isinstance(value, list) else ():
            yield str((model.get("args") or "") if isinstance(model, Mapping) else "")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(inner, Mapping):
                yield from argument_lines(name, inner)
            elif str(key).endswith("args"):
                yield str(inner or "")


def demand(values: Mapping[str, Any]) -> None:
    """Raises Refused for the first of *values*, by the role variables' names, that has a fault."""
    for name, value in values.items():
        if wrong := fault(name, value):
            raise Refused(f"{name} {wrong}.", "Correct it; nothing was written.")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value
