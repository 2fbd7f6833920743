# SPDX-License-Identifier: Apache-2.0
"""A host's apt and a mainline build, for tests of where a kernel comes from."""

from __future__ import annotations

from typing import ClassVar

from test_kernels import FakeApt

from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.kernel_choice import Deb, KernelCandidate
from lemonade_deploy.domain.kernels import Forecast

DEB = Deb("linux-image-unsigned-6.18.36-061836-generic", "https://m/x.deb", "0" * 64, 7)
BUILD = KernelCandidate(
    "6.18.36-061836-generic", (DEB.name,), "mainline", Forecast("fixed", "x"), debs=(DEB,)
)


class PrivateApt(FakeApt):
    """In place of the real one; remembers the planned sources."""

    packages: ClassVar[dict[str, str]] = {}
    planned: ClassVar[dict[str, str] | None] = None
    errors: ClassVar[list[str]] = []

    def __init__(self, _host: Host, *, sources: dict[str, str] | None = None) -> None:
        super().__init__(type(self).packages)
        type(self).planned = sources

    def __enter__(self) -> PrivateApt:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing is left behind."""

    def update(self) -> list[str]:
        return list(self.errors)
