# SPDX-License-Identifier: Apache-2.0
"""Signed apt repositories, and the small web answers (keys) that belong to them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from .. import catalog
from ..shell import run
from . import amdgpu, kernels, mainline
from .debs import Deb, build
from .keys import Key, sign_release

COMPONENT = "main"
# amdgpu.list asks for both; there is nothing for i386, but its index must exist.
ARCHITECTURES = ("amd64", "i386")
AMD_HOST = "repo.radeon.com"
ARCHIVE_HOST = "archive.ubuntu.com"
PPA_HOST = "ppa.launchpadcontent.net"
KEYSERVER_HOST = "keyserver.ubuntu.com"
LAUNCHPAD_HOST = "api.launchpad.net"


def build_sites(www: Path, keys: Mapping[str, Key], real_debs: Iterable[Path]) -> None:
    """Write every repository and key answer below *www*, one folder a host name.

    *real_debs* are packages of Debian for the PPA and the archive (see :mod:`..catalog`).
    """
    _amd(www / AMD_HOST, keys["amd"])
    real = {deb.name.partition("_")[0]: deb for deb in real_debs}
    _archive(
        www / ARCHIVE_HOST / "ubuntu", keys["archive"], [real[name] for name in catalog.REAL_ARCHIVE_PACKAGES]
    )
    security = www / "security.ubuntu.com"
    security.mkdir(parents=True, exist_ok=True)
    (security / "ubuntu").symlink_to(f"../{ARCHIVE_HOST}/ubuntu")
    _ppa(
        www / PPA_HOST / catalog.PPA_OWNER / catalog.PPA_NAME / "ubuntu",
        keys["ppa"],
        [real[name] for name in catalog.REAL_PPA_PACKAGES],
    )
    mainline.build_mainline(www / mainline.HOST, keys["mainline"])
    _key_answers(www, keys)


def _amd(site: Path, key: Key) -> None:
    secret_free = key.binary.read_bytes()
    for driver in catalog.DRIVERS:
        tree = site / "amdgpu" / driver.repository / "ubuntu"
        _pool(tree, amdgpu.driver_debs(driver, secret_free))
        _publish(tree, key, origin=AMD_HOST, label=AMD_HOST)
        for alias in driver.aliases:
            (site / "amdgpu" / alias).symlink_to(driver.repository)
    rocm = site / "rocm" / "apt" / catalog.ROCM_REPOSITORY
    _pool(rocm, [amdgpu.rocminfo_deb(catalog.ROCMINFO_AMD)])
    _publish(rocm, key, origin=AMD_HOST, label=AMD_HOST)
    (site / "rocm" / "rocm.gpg.key").write_bytes(key.armored.read_bytes())


def _archive(tree: Path, key: Key, real_debs: Iterable[Path]) -> None:
    debs: list[Deb] = [amdgpu.linux_firmware_deb(), amdgpu.rocminfo_deb(catalog.ROCMINFO_UBUNTU)]
    for kernel in catalog.KERNELS:
        debs += kernels.kernel_debs(kernel)
    debs += [kernels.meta_deb(meta) for meta in catalog.METAS]
    _pool(tree, debs)
    _take(tree, real_debs)
    _publish(tree, key, origin="Ubuntu", label="Ubuntu")


def _ppa(tree: Path, key: Key, real_debs: Iterable[Path]) -> None:
    _take(tree, real_debs)
    name = f"LP-PPA-{catalog.PPA_OWNER}-{catalog.PPA_NAME}"
    _publish(tree, key, origin=name, label="Lemonade Server")


def _key_answers(www: Path, keys: Mapping[str, Key]) -> None:
    shelf = www / KEYSERVER_HOST / "keys"
    shelf.mkdir(parents=True, exist_ok=True)
    for key in keys.values():
        if not key.role.endswith("-expired"):
            (shelf / f"{key.fingerprint}.asc").write_bytes(key.armored.read_bytes())
    ppa = f"~{catalog.PPA_OWNER}/+archive/ubuntu/{catalog.PPA_NAME}"
    answer = json.dumps(
        {"name": catalog.PPA_NAME, "signing_key_fingerprint": keys["ppa"].fingerprint, "simulated": True}
    )
    for api in ("devel", "1.0"):
        place = www / LAUNCHPAD_HOST / api / ppa
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(answer + "\n", "utf-8")


def _pool_folder(tree: Path, name: str) -> Path:
    package = name.partition("_")[0]
    return tree / "pool" / COMPONENT / package[0] / package


def _pool(tree: Path, debs: Iterable[Deb]) -> None:
    for deb in debs:
        build(deb, _pool_folder(tree, deb.name))


def _take(tree: Path, debs: Iterable[Path]) -> None:
    for deb in debs:
        place = _pool_folder(tree, deb.name) / deb.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(deb.read_bytes())


def _publish(tree: Path, key: Key, *, origin: str, label: str) -> None:
    """Index the pool below *tree* and sign the suite."""
    suite = tree / "dists" / catalog.CODENAME
    for architecture in ARCHITECTURES:
        folder = suite / COMPONENT / f"binary-{architecture}"
        folder.mkdir(parents=True, exist_ok=True)
        text = ""
        if architecture == "amd64":
            text = run(["env", "-C", tree, "apt-ftparchive", "packages", "pool"]).stdout
        (folder / "Packages").write_text(text, "utf-8")
        (folder / "Packages.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    values = {
        "Origin": origin,
        "Label": label,
        "Suite": catalog.CODENAME,
        "Codename": catalog.CODENAME,
        "Components": COMPONENT,
        "Architectures": " ".join(ARCHITECTURES),
        "Description": "simulated by lemonade-deploy's lab",
    }
    options = [word for k, v in values.items() for word in ("-o", f"APT::FTPArchive::Release::{k}={v}")]
    release = suite / "Release"
    release.write_text(run(["apt-ftparchive", *options, "release", suite]).stdout, "utf-8")
    sign_release(release, key)
