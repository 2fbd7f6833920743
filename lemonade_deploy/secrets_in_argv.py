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
# A file's name is no secret, nor is the wish to have one made.
_HARMLESS_ENDINGS = frozenset({"file", "path", "dir", "url", "fingerprint", "generate"})


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


# A name and what follows it, in any of the forms that carry a value: K=V, K: V, "K": V.
_NAMED = re.compile(r"""([A-Za-z_][\w.-]*)["']?\s*[=:]""")
# The password in a URL.
_IN_URL = re.compile(r"(://[^/@\s:]*:)[^/@\s]+@")


def redact(argv: Sequence[str], declared: Iterable[str] = ()) -> list[str]:
    """*argv* as it may be shown and stored: what follows a secret's name is replaced by ``***``.

    Every word is looked at, whatever stands before it: options are spelt in many ways (``-Ce K=V``,
    ``-veK=V``, ``--extra-v K=V``), and a word that is refused may stand at a wrong place.
    """
    known = frozenset(declared)
    return [_IN_URL.sub(r"\1***@", _redacted(word, known)) for word in argv]


def _redacted(word: str, declared: frozenset[str]) -> str:
    for match in _NAMED.finditer(word):
        if any(is_secret_name(name, declared) for name in _names(word, match)):
            return word[: match.end()] + "***"
    return word


def _names(word: str, match: re.Match[str]) -> Iterable[str]:
    """The names that a match may be: letters of options can stick to a name (``-Cetoken=x``)."""
    name = match[1]
    yield name
    if word.startswith("-") and not word.startswith("--") and match.start() == 1:
        yield from (name[at + 1 :] for at, letter in enumerate(name) if letter == "e")


def redact_text(text: str, argv: Sequence[str], declared: Iterable[str] = ()) -> str:
    """*text*, which may quote words of *argv*, without their secrets."""
    for word, shown in zip(argv, redact(argv, declared), strict=True):
        if word != shown:
            for said in (word, repr(word)[1:-1], word.partition("=")[2]):
                text = text.replace(said, "***" if said != word else shown) if said else text
    return text
