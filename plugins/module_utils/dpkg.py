# SPDX-License-Identifier: Apache-2.0
"""The dpkg database, read from its own file (no `dpkg -l` text)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from .host import Host

STATUS = "/var/lib/dpkg/status"
UPDATES = "/var/lib/dpkg/updates"  # journal of an interrupted dpkg: names made of digits
INFO = "/var/lib/dpkg/info"

# States in which a package's work was begun and not ended (dpkg(1), "Package states").
# triggers-* count too: `dpkg --configure -a` is what ends them.
UNFINISHED = ("half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending")

_FIELD = re.compile(r"^(Package|Status|Version|Architecture): *(.*)$", re.MULTILINE)


class Package(NamedTuple):
    """One package in the dpkg database; ``state`` is the third word of Status."""

    name: str
    version: str
    state: str
    want: str = "install"
    reinstall: bool = False
    architecture: str = ""

    @property
    def installed(self) -> bool:
        """Whether its files are on the disk, finished or not."""
        return self.state not in ("not-installed", "config-files")

    @property
    def known(self) -> bool:
        """Whether anything of it is left, configuration files included (purge finds work)."""
        return self.state != "not-installed"

    @property
    def unfinished(self) -> bool:
        """Whether dpkg stopped half-way with it."""
        return self.state in UNFINISHED or self.reinstall


def packages(host: Host, only: Callable[[str], bool] | None = None) -> dict[str, Package]:
    """All packages of the status file by name (the native one where several architectures are).

    ``only`` leaves out, before they are parsed, installed packages whose name it does not want;
    those that are not plainly installed always come along.
    """
    found: dict[str, Package] = {}
    for stanza in (host.read(STATUS) or "").split("\n\n"):
        plain = only is not None and "\nStatus: install ok installed\n" in stanza
        if plain and only is not None and not only(stanza[len("Package: ") : stanza.find("\n")]):
            continue
        fields = dict(_FIELD.findall(stanza))
        words = fields.get("Status", "").split()
        if "Package" not in fields or len(words) != 3:
            continue
        package = Package(
            fields["Package"],
            fields.get("Version", ""),
            words[2],
            words[0],
            words[1] == "reinstreq",
            fields.get("Architecture", ""),
        )
        if not (package.name in found and found[package.name].installed):
            found[package.name] = package
    return found


def unfinished(installed: dict[str, Package]) -> list[Package]:
    """Packages that dpkg left half-way, by name."""
    return [installed[name] for name in sorted(installed) if installed[name].unfinished]


def interrupted(host: Host) -> bool:
    """Whether dpkg itself was killed half-way (its journal is left)."""
    return any(name.isdigit() for name in host.listdir(UPDATES))
