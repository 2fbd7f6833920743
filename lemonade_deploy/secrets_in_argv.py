# SPDX-License-Identifier: Apache-2.0
"""Secrets do not belong in argv: every user of the machine can read them there (ps)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import yaml

from lemonade_deploy.errors import UsageError

_SECRET_WORDS = {
    "apikey",
    "auth",
    "credential",
    "credentials",
    "pass",
    "passphrase",
    "passwd",
    "password",
    "pw",
}
_SECRET_WORDS |= {"secret", "secrets", "token"}
_SECRET_PAIRS = (("api", "key"), ("private", "key"), ("access", "key"), ("secret", "key"), ("admin", "key"))
# A file's name is no secret.
_HARMLESS_ENDINGS = frozenset({"file", "path", "dir", "url", "fingerprint"})


def is_secret_name(name: str, declared: Iterable[str] = ()) -> bool:
    """Whether a variable of this name holds a secret.

    By its words (``max_tokens`` is none, ``hf_token`` is one), or because a role's specs
    say so (*declared*: the names with ``no_log``).
    """
    if name in set(declared):
        return True
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    if not words or words[-1] in _HARMLESS_ENDINGS:
        return False
    return bool(_SECRET_WORDS.intersection(words)) or any(pair in pairwise(words) for pair in _SECRET_PAIRS)


def _keys(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def secret_names(argument: str, declared: Iterable[str] = ()) -> list[str]:
    """The secrets that one ``-e`` argument carries by value; none for ``@file``."""
    if argument.startswith("@"):
        return []
    names = re.findall(r"(?:^|\s)([A-Za-z_][\w.-]*)=", argument)
    for text in (argument, argument.partition("=")[2]):
        try:
            names.extend(_keys(yaml.safe_load(text)))
        except yaml.YAMLError:
            continue  # not structured: only key=value pairs, which are read above
    known = set(declared)
    return sorted({name for name in names if is_secret_name(name, known)})


def refuse(arguments: Sequence[str], declared: Iterable[str] = ()) -> None:
    """Raise UsageError when an ``-e`` argument carries a secret. The value is not shown."""
    known = set(declared)
    for argument in arguments:
        names = secret_names(argument, known)
        if names:
            raise UsageError(
                f"-e {names[0]}=…: a secret on the command line is readable by every user of this machine.",
                "Put it in a file and give -e @FILE (mode 0600, better encrypted with ansible-vault), "
                "or in the inventory's vault.",
            )


def redact(argv: Sequence[str]) -> list[str]:
    """*argv* as it may be shown and stored: values of secrets replaced by ``***``."""
    shown: list[str] = []
    for position, word in enumerate(argv):
        before = argv[position - 1] if position else ""
        if before in ("-e", "--extra-vars") and secret_names(word):
            shown.append("***")
        elif word.startswith("--extra-vars=") and secret_names(word.partition("=")[2]):
            shown.append("--extra-vars=***")
        elif word.startswith("-e") and len(word) > 2 and secret_names(word[2:]):
            shown.append("-e***")
        else:
            shown.append(word)
    return shown
