# SPDX-License-Identifier: Apache-2.0
"""What a kernel's release says of it: flavour, verdict for each GPU, and what a pin means."""

from __future__ import annotations

import pytest

from lemonade_deploy.domain import kernels


@pytest.mark.parametrize(
    ("release", "gfx", "verdict"),
    [
        ("7.0.0-31-generic", "gfx1151", "fixed"),
        ("7.0.0-14-generic", "gfx1151", "fixed"),
        ("7.0.0-1005-oem", "gfx1151", "fixed"),
        ("6.17.0-20-generic", "gfx1151", "unproven"),
        ("6.17.0-14-generic", "gfx1151", "unproven"),
        ("6.17.0-19-generic", "gfx1151", "unproven"),
        ("6.17.0-29-generic", "gfx1151", "unproven"),
        ("6.17.0-22-generic", "gfx1151", "unproven"),
        ("6.17.0-41-generic", "gfx1151", "unproven"),
        ("6.17.0-1009-oem", "gfx1151", "unproven"),
        ("6.17.0-1032-oem", "gfx1151", "unproven"),
        ("6.14.0-1022-oem", "gfx1151", "fixed"),
        ("6.11.0-1027-oem", "gfx1151", "bad"),
        ("6.18.4-061804-generic", "gfx1151", "fixed"),
        ("6.18.0-061800-generic", "gfx1151", "bad"),
        ("6.19.0-061900-generic", "gfx1151", "fixed"),
        ("6.12.64-061264-generic", "gfx1151", "fixed"),
        ("6.12.63-061263-generic", "gfx1151", "bad"),
        ("6.12.64+deb13-amd64", "gfx1151", "fixed"),
        ("6.18.4-200.fc43.x86_64", "gfx1151", "fixed"),
        ("6.18.4-arch1-1", "gfx1151", "fixed"),
        ("6.18.5-1-default", "gfx1151", "fixed"),
        ("6.19.0-1-default", "gfx1151", "fixed"),
        ("6.18.3-2-cachyos", "gfx1151", "bad"),
        ("6.18.5-3-liquorix", "gfx1151", "fixed"),
        ("6.12.70-1-lts", "gfx1151", "fixed"),
        ("6.12.0-124.8.1.el10_1.x86_64", "gfx1151", "unproven"),
        ("5.14.0-570.12.1.el9_6.x86_64", "gfx1151", "unproven"),
        ("6.12.0-160000.5-default", "gfx1151", "unproven"),
        ("6.12.0-160000.5-default", "gfx1150", "unproven"),
        ("5.14.0-570.12.1.el9_6.x86_64", "gfx1201", "unproven"),
        ("6.17.0-1018-oem", "gfx1150", "unproven"),
        ("6.17.0-22-generic", "gfx1150", "unproven"),
        ("7.0.0-31-generic", "gfx1150", "fixed"),
        ("6.8.0-45-generic", "gfx1150", "bad"),
        ("6.8.0-45-generic", "gfx1100", "fixed"),
        ("6.8.0-45-generic", "gfx1103", "fixed"),
        ("6.8.0-45-generic", "gfx1200", "bad"),
        ("6.17.0-1033-oem", "gfx1151", "unproven"),
        ("6.17.0-1008-oem", "gfx1151", "bad"),
        ("6.14.0-1018-oem", "gfx1151", "fixed"),
        ("6.14.0-1017-oem", "gfx1151", "bad"),
        ("6.14.0-37-generic", "gfx1151", "bad"),
        ("6.8.0-45-generic", "gfx1151", "bad"),
        ("6.18.20-061820-generic", "gfx1151", "fixed"),
        ("6.18.3-061803-generic", "gfx1151", "bad"),
        ("6.19.0-061900rc2-generic", "gfx1151", "unproven"),
        ("6.17.9-061709-generic", "gfx1151", "bad"),
        ("6.12.107+deb13-amd64", "gfx1151", "fixed"),
        ("6.12.43+deb13-amd64", "gfx1151", "bad"),
        ("7.1.8+deb13-amd64", "gfx1151", "fixed"),
        ("6.1.0-38-amd64", "gfx1151", "bad"),
        ("6.18.9-200.fc43.x86_64", "gfx1151", "fixed"),
        ("6.18.3-arch1-1", "gfx1151", "bad"),
        ("6.17.0-1017-oem", "gfx1150", "bad"),
        ("6.17.0-20-generic", "gfx1150", "bad"),
        ("6.14.0-1018-oem", "gfx1150", "fixed"),
        ("6.17.0-20-generic", "gfx1100", "fixed"),
        ("6.8.0-45-generic", "gfx1201", "bad"),
        ("6.14.0-37-generic", "gfx1201", "fixed"),
        ("6.14.0-37-generic", "gfx1152", "unproven"),
    ],
)
def test_verdicts(release: str, gfx: str, verdict: str) -> None:
    kernel = kernels.parse(release)
    assert kernel is not None
    assert kernels.forecast(kernel, gfx).verdict == verdict


@pytest.mark.parametrize(
    ("release", "flavour", "abi"),
    [
        ("7.0.0-31-generic", "generic", 31),
        ("6.17.0-1033-oem", "oem", 1033),
        ("6.18.20-061820-generic", "mainline", None),
        ("6.12.107+deb13-amd64", "debian", None),
        ("6.1.0-38-amd64", "debian", None),
        ("6.18.9-200.fc43.x86_64", "other", None),
        ("6.18.44-microvm", "other", None),
    ],
)
def test_flavours(release: str, flavour: str, abi: int | None) -> None:
    kernel = kernels.parse(release)
    assert kernel is not None
    assert (kernel.flavour, kernel.abi) == (flavour, abi)


@pytest.mark.parametrize(
    ("pin", "release", "meant"),
    [
        ("6.18.20", "6.18.20-061820-generic", True),
        ("6.18.20-061820-generic", "6.18.20-061820-generic", True),
        ("6.18.2", "6.18.20-061820-generic", False),
        ("6.18", "6.18.0-061800-generic", True),
        ("6.19", "6.19.0-061900rc2-generic", False),
        ("7.1.8", "7.1.8+deb13-amd64", True),
        ("6.18.9", "6.18.9-200.fc43.x86_64", True),
        ("7.0.0", "7.0.0-31-generic", False),  # Ubuntu counts its builds
        ("6.12.0", "6.12.0-124.8.1.el10_1.x86_64", False),
        ("7.0.0-31-generic", "7.0.0-31-generic", True),
        ("", "7.0.0-31-generic", False),
    ],
)
def test_what_a_pin_means(pin: str, release: str, meant: bool) -> None:
    kernel = kernels.parse(release)
    assert kernel is not None and kernels.is_pin_of(pin, kernel) is meant
