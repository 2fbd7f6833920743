# SPDX-License-Identifier: Apache-2.0
"""Which distribution a host runs, from os-release."""

from __future__ import annotations

from typing import NamedTuple

from .host import Host

_UBUNTU = {"jammy": "22.04", "noble": "24.04", "resolute": "26.04"}


class Distribution(NamedTuple):
    """``id`` (ubuntu, debian, …), ``version`` ("24.04", "13"), ``codename`` ("noble")."""

    id: str
    version: str
    codename: str
    like: tuple[str, ...] = ()

    @property
    def ubuntu(self) -> bool:
        """Whether kernels and packages are Ubuntu's (its derivatives keep its archive)."""
        return self.id == "ubuntu" or "ubuntu" in self.like

    @property
    def base(self) -> str:
        """``ubuntu`` for its derivatives too, else the id: whose archives and suites count."""
        return "ubuntu" if self.ubuntu else self.id

    @property
    def apt(self) -> bool:
        """Whether this kit has a backend for it: Debian, Ubuntu and their derivatives."""
        return self.ubuntu or self.id == "debian" or "debian" in self.like

    @property
    def name(self) -> str:
        """For people: ``ubuntu 24.04``."""
        return f"{self.id} {self.version or self.codename}".strip()


def read_distribution(host: Host) -> Distribution:
    """The host's distribution; empty strings where os-release does not say."""
    release = host.os_release()
    codename = release.get("UBUNTU_CODENAME", "") or release.get("VERSION_CODENAME", "")
    name, version = release.get("ID", "").lower(), release.get("VERSION_ID", "")
    return Distribution(
        id=name,
        # A derivative's own number (Mint 22) says nothing about the archive it takes its kernels from.
        version=version if name == "ubuntu" else _UBUNTU.get(codename, version),
        codename=codename,
        like=tuple(release.get("ID_LIKE", "").lower().split()),
    )
