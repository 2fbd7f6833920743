# SPDX-License-Identifier: Apache-2.0
"""The simulated packages: built for real, read back with dpkg-deb, make and modinfo's format."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lemonade_deploy.lab import catalog, kmod
from lemonade_deploy.lab.services import amdgpu, debs, kernels, sources

DRIVERS = {driver.repository: driver for driver in catalog.DRIVERS}


def _dkms(repository: str) -> debs.Deb:
    return next(deb for deb in amdgpu.driver_debs(DRIVERS[repository], b"key") if deb.name == "amdgpu-dkms")


def test_catalogue_tells_the_known_story() -> None:
    cwsr = {kernel.release: kernel.lab_cwsr for kernel in catalog.KERNELS}
    assert cwsr == {
        "6.14.0-37-generic": "none",
        "6.17.0-20-generic": "none",
        "6.17.0-1033-oem": "old",
        "7.0.0-31-generic": "fixed",
        "6.18.20-061820-generic": "fixed",
    }
    assert DRIVERS["30.30"].version == "1:6.16.13.30300000-2278356.24.04"
    assert DRIVERS["30.30"].dkms_version == "6.16.13-2278356.24.04"
    assert (DRIVERS["30.30"].lab_cwsr, DRIVERS["31.20"].lab_cwsr) == ("none", "fixed")
    assert catalog.MISSING_REPOSITORY not in DRIVERS


def test_every_dependency_of_a_meta_is_served() -> None:
    served = {name for kernel in catalog.KERNELS for name in kernel.packages}
    served |= {meta.name for meta in catalog.METAS} | {"linux-firmware"}
    wanted = {item.split(" ")[0] for meta in catalog.METAS for item in meta.depends}
    assert wanted <= served


@pytest.mark.parametrize("kernel", catalog.KERNELS, ids=lambda kernel: kernel.release)
def test_amdgpu_lies_where_ubuntu_puts_it(kernel: catalog.Kernel) -> None:
    made = {deb.name: deb for deb in kernels.kernel_debs(kernel)}
    assert set(made) == set(kernel.packages)
    holder = f"linux-modules-extra-{kernel.release}" if kernel.extra else f"linux-modules-{kernel.release}"
    path = f"/lib/modules/{kernel.release}/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko.zst"
    assert [name for name, deb in made.items() if path in deb.files] == [holder]
    info = kmod.read_modinfo(made[holder].files[path].content)
    assert info["lab_cwsr"] == kernel.lab_cwsr
    assert info["vermagic"].split()[0] == kernel.release
    assert "version" not in info  # only the dkms driver says one


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_built_package_says_what_it_should(tmp_path: Path) -> None:
    path = debs.build(_dkms("30.30"), tmp_path)
    assert path.name == "amdgpu-dkms_6.16.13.30300000-2278356.24.04_all.deb"
    fields = subprocess.run(["dpkg-deb", "-f", path], capture_output=True, text=True, check=True).stdout
    assert "Version: 1:6.16.13.30300000-2278356.24.04\n" in fields
    listing = subprocess.run(["dpkg-deb", "-c", path], capture_output=True, text=True, check=True).stdout
    assert "./usr/src/amdgpu-6.16.13-2278356.24.04/dkms.conf" in listing
    assert all(line.split()[1] == "root/root" for line in listing.splitlines())
    again = debs.build(_dkms("30.30"), tmp_path / "again")
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("repository", "release", "builds"),
    [
        ("30.30", "6.14.0-37-generic", True),
        ("30.30", "6.17.0-1033-oem", True),
        ("30.30", "6.18.20-061820-generic", False),
        ("30.30", "7.0.0-31-generic", False),
        ("31.20", "6.18.20-061820-generic", True),
        ("31.20", "6.19.4-061904-generic", True),
        ("31.20", "7.0.0-31-generic", False),
        ("31.30", "7.0.0-31-generic", True),
    ],
)
def test_driver_builds_on_the_kernels_it_knows(
    tmp_path: Path, repository: str, release: str, builds: bool
) -> None:
    deb = _dkms(repository)
    source = next(path for path in deb.files if path.endswith("/Makefile")).rpartition("/")[0]
    for path, item in deb.files.items():
        if path.startswith(source):
            place = tmp_path / path.removeprefix(source + "/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(item.content)
    # As dkms calls it: several jobs, and every module of dkms.conf must be there afterwards.
    done = subprocess.run(
        ["make", "-C", tmp_path, "-j4", f"KERNELRELEASE={release}", f"KVER={release}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if builds else 2), done.stderr
    names = re.findall(r'BUILT_MODULE_NAME\[\d+\]="(.+)"', (tmp_path / "dkms.conf").read_text())
    assert [(tmp_path / f"{name}.ko").exists() for name in names] == [builds] * len(names)
    if builds:
        info = kmod.read_modinfo((tmp_path / "amdgpu.ko").read_bytes())
        assert info["vermagic"].split()[0] == release
        assert info["lab_cwsr"] == DRIVERS[repository].lab_cwsr


@pytest.mark.parametrize("name", ["postinst", "prerm", "postrm"])
def test_maintainer_scripts_parse(name: str) -> None:
    text = _dkms("30.30").scripts[name]
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert "@" not in text.replace('"$@"', "")


def test_driver_postinst_leaves_its_blacklist_when_the_build_fails(tmp_path: Path) -> None:
    text = _dkms("30.30").scripts["postinst"]
    blacklist = tmp_path / "modprobe.d" / "blacklist-amdgpu.conf"
    for result in (10, 0):
        common = tmp_path / "common.postinst"
        common.write_text(f"#!/bin/sh\ngrep -q amdgpu {blacklist} && exit {result}\n")
        common.chmod(0o755)
        ours = (
            text.replace("/etc/modprobe.d/blacklist-amdgpu.conf", str(blacklist))
            .replace("/usr/lib/dkms/common.postinst", str(common))
            .replace("dkms status -m", "true -m")
        )
        done = subprocess.run(["bash", "-s", "configure", ""], input=ours, text=True, check=False)
        assert done.returncode == result
        assert blacklist.exists() == (result != 0)


def test_unfilled_placeholder_is_an_error() -> None:
    with pytest.raises(LookupError, match="DKMS_VERSION"):
        debs.script("amdgpu-dkms.prerm")


def test_firmware_tells_its_version() -> None:
    blob = amdgpu.firmware_blob(0x83)
    assert int.from_bytes(blob[0:4], "little") == len(blob)
    assert int.from_bytes(blob[16:20], "little") == 0x83


def test_apt_texts() -> None:
    text = sources.amdgpu_list("30.30")
    assert text.startswith(
        "deb [arch=amd64,i386 signed-by=/etc/apt/keyrings/rocm.gpg]"
        " https://repo.radeon.com/amdgpu/30.30/ubuntu noble main\n"
    )
    assert sources.amdgpu_pin() == "Package: *\nPin: release o=repo.radeon.com\nPin-Priority: 600\n"
