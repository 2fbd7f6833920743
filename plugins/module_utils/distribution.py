# SPDX-License-Identifier: Apache-2.0
"""Which distribution a host runs, from os-release."""

from __future__ import annotations

from typing import NamedTuple

from .host import Host


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
    codename = release.get("VERSION_CODENAME", "")
    ubuntu_codename = release.get("UBUNTU_CODENAME", "")
    return Distribution(
        id=release.get("ID", "").lower(),
        version=release.get("VERSION_ID", ""),
        codename=ubuntu_codename or codename,
        like=tuple(release.get("ID_LIKE", "").lower().split()),
    )
