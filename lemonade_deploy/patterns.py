# SPDX-License-Identifier: Apache-2.0
"""Host patterns (``-l``, ``hosts:``) that Ansible would take for "all hosts", or not understand, refused."""

from __future__ import annotations

import re
from collections.abc import Sequence


class PatternError(ValueError):
    """A host pattern that selects not what it says; its text says where it stands."""


def fault(written: str, terms: Sequence[str]) -> str:
    """Why the pattern *written* selects not what it says, or an empty text.

    *terms* are the patterns that Ansible makes of it (a ``@file`` already read). Ansible drops what it
    cannot read, and a limit that nothing is left of means every host to it.
    """
    if not any(term.strip() for term in terms):
        return "it names no host"
    if not written.startswith("@") and _bare(written) != _bare("".join(terms)):
        return "it is no host pattern (a bracket is not closed, or closes nothing)"
    for term in terms:
        name = term.strip().lstrip("!&")
        if term.strip() and not name:
            return f"nothing follows the {term.strip()}"
        if not name.startswith("~"):
            continue
        if not name[1:].strip():
            return "nothing follows the ~"
        try:
            re.compile(name[1:])
        except re.error as error:
            return f"{name} is no regular expression ({error})"
    return ""


def _bare(text: str) -> str:
    """*text* without what separates patterns."""
    return re.sub(r"[\s,:]", "", text)
