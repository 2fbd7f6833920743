# SPDX-License-Identifier: Apache-2.0
"""dpkg's status file as it will be after steps that are only planned, for apt to plan on."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from . import dpkg
from .host import Host

_NAME = re.compile(r"^Package: *(\S+)", re.MULTILINE)
_STATUS = re.compile(r"^Status: *(\S+) +(\S+) +(\S+) *$", re.MULTILINE)
_NEEDS = re.compile(r"^(?:Pre-)?Depends: *(.*)$", re.MULTILINE)


def after(
    host: Host,
    *,
    gone: Callable[[str], bool] = lambda _name: False,
    released: Collection[str] = (),
    finished: bool = False,
) -> str:
    """The text of the status file without the packages that are *gone*.

    *released*: their hold is lifted. *finished*: what dpkg left half-way is done.
    """
    kept = []
    for stanza in (host.read(dpkg.STATUS) or "").split("\n\n"):
        name, status = _NAME.search(stanza), _STATUS.search(stanza)
        if name is None or status is None or gone(name[1]):
            continue
        want, flag, state = status.groups()
        if want == "hold" and name[1] in released:
            want = "install"
        if finished and (state in dpkg.UNFINISHED or flag == "reinstreq"):
            if "\nVersion:" not in stanza:
                continue
            flag, state = "ok", "installed"
        kept.append(
            f"{stanza[: status.start()]}Status: {want} {flag} {state}{stanza[status.end() :]}".strip("\n")
        )
    return "\n\n".join(kept) + "\n"


def dependants(host: Host, packages: Collection[str], only: Callable[[str], bool]) -> list[str]:
    """*packages* and those installed ones that *only* allows and that depend on them, at any distance."""
    needs: dict[str, set[str]] = {}
    for stanza in (host.read(dpkg.STATUS) or "").split("\n\n"):
        name, status = _NAME.search(stanza), _STATUS.search(stanza)
        if name is None or status is None or status[3] in ("not-installed", "config-files"):
            continue
        if only(name[1]):
            words = re.split(r"[,|]", ",".join(_NEEDS.findall(stanza)))
            needs[name[1]] = {re.split(r"[\s:(]", word.strip())[0] for word in words}
    found = list(packages)
    while more := [name for name in needs if name not in found and needs[name] & set(found)]:
        found += more
    return found
