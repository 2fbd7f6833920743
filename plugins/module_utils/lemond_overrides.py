# SPDX-License-Identifier: Apache-2.0
"""lemond's own config.json against the defaults file the kit gives it: config.json wins, key by key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import paths
from .host import Host

# Since Lemonade 11.8; before that below .cache (its commit edf2aa529).
CONFIG_FILES = ("/var/lib/lemonade/config.json", "/var/lib/lemonade/.cache/lemonade/config.json")
_SECRET = re.compile(r"key|token|secret|password", re.IGNORECASE)
# … as an argument in a value, like vllm.args "--api-key x".
_SECRET_WORD = re.compile(r"(api.?key|token|secret|password)[\s=:\"']", re.IGNORECASE)


class Override(NamedTuple):
    """A setting of config.json that outranks ours. Values are JSON text; secrets are not shown."""

    path: str
    line: int
    key: str
    value: str
    ours: str


def _load(host: Host, path: str) -> tuple[str, dict[str, Any]] | None:
    text = host.read(path)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return text, {}  # lemond renames such a file and starts with its defaults
    return (text, value) if isinstance(value, dict) else (text, {})


def _differences(
    ours: dict[str, Any], theirs: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for key, value in ours.items():
        if key not in theirs:
            continue
        other = theirs[key]
        if isinstance(value, dict) and isinstance(other, dict):
            yield from _differences(value, other, f"{prefix}{key}.")
        elif other != value:
            yield f"{prefix}{key}", other, value


def _line_of(text: str, key: str) -> int:
    match = re.search(rf'"{re.escape(key.rsplit(".", 1)[-1])}"\s*:', text)
    return text.count("\n", 0, match.start()) + 1 if match else 1


def shown(key: str, value: Any) -> str:
    """A setting for people, as JSON, unless it may be a secret."""
    text = json.dumps(value)
    return "(not shown)" if _SECRET.search(key) or _SECRET_WORD.search(text) else text


def overrides(host: Host) -> list[Override]:
    """Settings of config.json that differ from the kit's defaults file; empty without that file."""
    ours = _load(host, paths.LEMOND_DEFAULTS)
    if ours is None:
        return []
    found = []
    for path in CONFIG_FILES:
        theirs = _load(host, path)
        if theirs is None:
            continue
        found += [
            Override(path, _line_of(theirs[0], key), key, shown(key, value), shown(key, mine))
            for key, value, mine in _differences(ours[1], theirs[1])
        ]
    return found
