# SPDX-License-Identifier: Apache-2.0
"""``-e`` arguments as files: what is in argv of ansible-playbook can be read by everybody."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lemonade_deploy.errors import UsageError


@dataclass(frozen=True)
class ExtraFiles:
    """Files for Ansible's ``-e @``, in order, and how to name each to the user."""

    files: tuple[Path, ...]
    names: dict[str, str]


def prepare(arguments: Sequence[str], folder: Path, private: Path) -> ExtraFiles:
    """Turn ``K=V …``, ``{json or yaml}`` and ``@file`` into files.

    Raises UsageError for a file that cannot be read or an argument of no such form.
    """
    files: list[Path] = []
    names: dict[str, str] = {}
    for number, argument in enumerate(arguments):
        if argument.startswith("@"):
            path = (folder / Path(argument[1:]).expanduser()).absolute()
            _readable(path, argument)
            names[str(path)] = argument[1:]
        else:
            path = private / f"extra-{number}.yml"
            path.write_text(yaml.safe_dump(_parse(argument), allow_unicode=True), encoding="utf-8")
            path.chmod(0o600)
            names[str(path)] = f"-e {argument}"
        files.append(path)
    return ExtraFiles(tuple(files), names)


def _readable(path: Path, argument: str) -> None:
    try:
        with path.open(encoding="utf-8") as stream:
            stream.read(1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"-e {argument}: the file cannot be read ({error}).") from error


def _parse(argument: str) -> dict[str, Any]:
    text = argument.strip()
    if text.startswith("{"):
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UsageError(f"-e {argument}: not valid JSON or YAML.") from error
        if isinstance(value, dict):
            return {str(key): inner for key, inner in value.items()}
        raise UsageError(f"-e {argument}: a dictionary is wanted.")
    return dict(_pairs(argument))


def _pairs(argument: str) -> list[tuple[str, str]]:
    """``a=1 b="two words"``; a value may hold spaces when there is but one pair."""
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"-e {argument}: {error}.") from error
    if words and not all(_is_pair(word) for word in words) and _is_pair(words[0]):
        # -e 'verify_prompt=What is 2+2?': the shell has taken the quotes already.
        words = [argument]
    pairs = []
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name.isidentifier():
            raise UsageError(f"-e {argument}: neither KEY=VALUE nor @FILE.")
        pairs.append((name, value))
    if not pairs:
        raise UsageError("-e: empty; KEY=VALUE or @FILE is wanted.")
    return pairs


def _is_pair(word: str) -> bool:
    name, sign, _value = word.partition("=")
    return bool(sign) and name.isidentifier()
