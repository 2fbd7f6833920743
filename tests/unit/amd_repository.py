# SPDX-License-Identifier: Apache-2.0
"""AMD's repository as the tests of the dkms side see it: its packages, its key, boxes before and after."""

from __future__ import annotations

from pathlib import Path

from driver_box import Box, dirty

from lemonade_deploy.domain import driver_plan, driver_sources, driver_state, driver_switch, openpgp
from lemonade_deploy.domain.change import Change
from lemonade_deploy.domain.driver_sources import Request

OK = "install ok installed"
NEW = "1:6.19.0.31200000-2400000.24.04"
NEW_FIRMWARE = "1:31.20.0.0.31200000-2400000.24.04"
OLD_FIRMWARE_EPOCH = "1:6.12.12.60404-2202139.24.04"
OLD_INSTALLED = "30.30.0.0.30300000-2278356.24.04"
KEY = (Path(__file__).parent / "fixtures" / "test-key.asc").read_bytes()
FINGERPRINT = openpgp.read_keys(KEY)[0].fingerprint
KEY_FILE = "/etc/apt/keyrings/rocm.gpg"
LIST = "/etc/apt/sources.list.d/amdgpu.list"
PIN_FILE = "/etc/apt/preferences.d/repo-radeon-pin-600"
PROBED = "https://repo.radeon.com/amdgpu/31.20/ubuntu/dists/noble/InRelease"
SERVED = {PROBED: b"signed", driver_sources.KEY_URL: KEY}


def repository(box: Box, version: str = "31.20", firmware: str = NEW_FIRMWARE) -> None:
    """What apt sees of AMD's repository."""
    stanza = "Package: {}\nVersion: {}\nArchitecture: all\n\n"
    known = stanza.format("amdgpu-dkms", NEW)
    fw = "".join(stanza.format("amdgpu-dkms-firmware", text) for text in (OLD_FIRMWARE_EPOCH, firmware))
    name = f"amdgpu-dkms_{NEW.replace(':', '%3a')}_all.deb"
    uri = f"'https://repo.radeon.com/amdgpu/{version}/ubuntu/pool/a.deb' {name} 1 x\n"
    box.on("apt-cache", "show", "amdgpu-dkms", stdout=known)
    box.on("apt-cache", "--all-versions", "amdgpu-dkms-firmware", stdout=fw)
    box.on("apt-get", "--print-uris", stdout=uri)


def request(version: str = "31.20", exact: bool = False, kernel: str = "6.18.20-061820-generic") -> Request:
    return Request(version, exact, FINGERPRINT, kernel)


def box_of(tmp_path: Path) -> Box:
    """A dirty box whose key is good, and AMD's server with the wanted release."""
    box = dirty(tmp_path).file(KEY_FILE, openpgp.dearmor(KEY)).serve(SERVED)
    repository(box)
    return box


def planned(box: Box, wanted: Request | None = None) -> tuple[driver_plan.DkmsWish, list[Change]]:
    state = driver_state.read(box.host)
    wish = driver_switch.make_wish(box.host, state, wanted or request())
    return wish, driver_plan.plan_dkms(state, wish, driver_switch.steps(wish))


def untouched(box: Box, before: dict[str, object]) -> bool:
    """Whether every file is as it was; apt's private state leaves an empty /tmp behind."""
    temporary = str(box.root / "tmp")
    after, then = ({p: s for p, s in tree.items() if p != temporary} for tree in (box.snapshot(), before))
    return after == then


def installed(tmp_path: Path) -> Box:
    box = Box(tmp_path).file(KEY_FILE, openpgp.dearmor(KEY))
    box.kernel("6.18.20-061820-generic").loaded("dkms", "x", "6.19.0").amd_source("31.20").distribution()
    box.module("6.18.20-061820-generic", "dkms")
    box.dpkg(
        {
            "amdgpu-dkms": (NEW, OK),
            "amdgpu-dkms-firmware": (NEW_FIRMWARE, OK),
            "linux-headers-6.18.20-061820-generic": ("1", OK),
        }
    )
    return box
