# SPDX-License-Identifier: Apache-2.0
"""Which drivers a kernel has: its modules.builtin, modules.dep and modules.alias."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from .host import Host

_SUFFIX = re.compile(r"\.ko(?:\.(?:gz|xz|zst))?$")


def name_of(path: str) -> str:
    """A module's name as the kernel shows it: from a file name or path, ``-`` and ``_`` being the same."""
    return _SUFFIX.sub("", path.rpartition("/")[2]).replace("-", "_")


class Modules(NamedTuple):
    """``builtin``: names of what is in the image; ``files``: module name → path below the release."""

    release: str
    builtin: frozenset[str]
    files: dict[str, str]

    def __contains__(self, name: object) -> bool:
        return name in self.builtin or name in self.files

    @property
    def known(self) -> bool:
        """Whether this kernel's lists are there at all."""
        return bool(self.builtin or self.files)


def read(host: Host, release: str) -> Modules:
    """The drivers of one kernel; empty where its lists are not there."""
    folder = f"/lib/modules/{release}"
    builtin = (host.read(f"{folder}/modules.builtin") or "").split()
    paths = [line.partition(":")[0] for line in (host.read(f"{folder}/modules.dep") or "").splitlines()]
    return Modules(release, frozenset(map(name_of, builtin)), {name_of(path): path for path in paths if path})


def for_alias(host: Host, release: str, modalias: str) -> list[str]:
    """Modules of a kernel that say that they drive a device (its ``modalias`` in sysfs)."""
    found = []
    for line in (host.read(f"/lib/modules/{release}/modules.alias") or "").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "alias" and fnmatchcase(modalias, words[1]):
            found.append(words[2].replace("-", "_"))
    return list(dict.fromkeys(found))


def lacking(needs: Iterable[str], running: Modules, target: Modules) -> list[str]:
    """What *target* has not, of the modules that the running kernel uses.

    A name that the running kernel's own lists do not have is no module (a part of the image that could
    never be one) and is not asked for.
    """
    asked = [name for name in needs if name in running or not running.known]
    return [name for name in dict.fromkeys(asked) if name not in target]
