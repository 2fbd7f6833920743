# SPDX-License-Identifier: Apache-2.0
"""AMD's driver packages, simulated: amdgpu-dkms, amdgpu-dkms-firmware, amdgpu-install.

The real dkms builds and installs the stub modules; the maintainer scripts are written anew and
behave as reported of AMD's (blacklist during the build, ``set -e``, initramfs hook, the list in
/var/tmp).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .. import catalog
from ..catalog import Driver
from ..kmod import module_bytes, srcversion, zstd_stored
from .debs import Deb, File, script
from .kernels import AMDGPU_ALIAS, AMDGPU_PARMS, TTM_PARMS
from .sources import amdgpu_install_files

MODULES = {  # name -> place below /kernel
    "amdgpu": "drivers/gpu/drm/amd/amdgpu",
    "amdttm": "drivers/gpu/drm/ttm",
    "amdkcl": "drivers/gpu/drm/amd/amdkcl",
    "amd-sched": "drivers/gpu/drm/scheduler",
    "amdxcp": "drivers/gpu/drm/amd/amdxcp",
}
# amdttm etc. export what amdgpu uses, so the driver's own ttm comes along with it.
_EXPORTS = {
    "amdttm": ("amdttm_bo_init_reserved",),
    "amdkcl": ("kcl_drm_dev_enter",),
    "amd-sched": ("amddrm_sched_init",),
    "amdxcp": ("amdkcl_xcp_drm_dev_alloc",),
}
_VERMAGIC_MARK = "LAB_VERMAGIC_".ljust(96, "_")

# MES firmware: 0x83 hangs gfx1151 (what 30.30 brought), 0x80 is good.
_BAD_MES, _GOOD_MES = 0x83, 0x80
_MES_FILES = ("gc_11_5_1_mes1.bin", "gc_11_5_1_mes_2.bin")
# What the distribution's package brings for the GPUs of the lab's machines (linux-firmware's WHENCE).
_GRAPHICS_CORES = ("11_0_0", "11_5_0", "11_5_1", "12_0_1")
_CORE_FILES = tuple(
    f"gc_{core}_{part}.bin" for core in _GRAPHICS_CORES for part in ("pfp", "me", "mec", "rlc", "imu")
)


def driver_debs(driver: Driver, key: bytes) -> Iterator[Deb]:
    """The packages of one driver release; *key* is the repository's key (dearmored)."""
    yield _dkms(driver)
    yield _firmware(driver)
    yield Deb(
        "amdgpu-install",
        f"{driver.repository}.0.0.{driver.build}",
        "sources, key and pin of AMD's simulated repository",
        architecture="all",
        fields={"Section": "utils"},
        files={path: File(content) for path, content in amdgpu_install_files(driver.repository, key).items()},
        conffiles=tuple(amdgpu_install_files(driver.repository, key)),
    )


def linux_firmware_deb() -> Deb:
    """The distribution's firmware package, with good MES firmware for gfx1151."""
    blob = zstd_stored(firmware_blob(_GOOD_MES))
    return Deb(
        "linux-firmware",
        catalog.LINUX_FIRMWARE_VERSION,
        "simulated firmware files",
        architecture="all",
        files={f"/lib/firmware/amdgpu/{name}.zst": File(blob) for name in (*_MES_FILES, *_CORE_FILES)},
    )


def rocminfo_deb(version: str) -> Deb:
    """A stand-in for rocminfo, of AMD's or of Ubuntu's version."""
    fields = {"Section": "utils"}
    return Deb("rocminfo", version, "simulated ROCm information tool, without a program", fields=fields)


def firmware_blob(ucode_version: int) -> bytes:
    """An amdgpu firmware file: the driver's common header (32 bytes) and an empty payload."""
    payload = bytes(64)
    return (
        struct.pack("<IIHHHHIIII", 32 + len(payload), 32, 1, 0, 11, 5, ucode_version, len(payload), 32, 0)
        + payload
    )


def _firmware(driver: Driver) -> Deb:
    blob = firmware_blob(_BAD_MES if driver.repository == "30.30" else _GOOD_MES)
    return Deb(
        "amdgpu-dkms-firmware",
        driver.firmware_version,
        "simulated firmware for amdgpu-dkms",
        architecture="all",
        files={f"/lib/firmware/updates/amdgpu/{name}": File(blob) for name in _MES_FILES},
    )


def _dkms(driver: Driver) -> Deb:
    source = f"/usr/src/amdgpu-{driver.dkms_version}"
    share = "/usr/share/amdgpu-dkms"
    records = "\n".join(
        f'BUILT_MODULE_NAME[{number}]="{name}"\nDEST_MODULE_LOCATION[{number}]="/kernel/{place}"'
        for number, (name, place) in enumerate(MODULES.items())
    )
    makefile = script(
        "Makefile",
        MODULE_VERSION=driver.module_version,
        KERNEL_LIMIT=driver.kernel_limit,
        MODULE_NAMES=" ".join(MODULES),
        VERMAGIC_MARK=_VERMAGIC_MARK,
        VERMAGIC_LENGTH=str(len(_VERMAGIC_MARK)),
    )
    configuration = script("dkms.conf", DKMS_VERSION=driver.dkms_version, MODULES=records)
    files = {
        f"{source}/dkms.conf": File(configuration.encode()),
        f"{source}/Makefile": File(makefile.encode()),
        f"{share}/initramfs-hook": File(script("initramfs-hook").encode(), 0o755),
        "/usr/share/dkms/modules_to_force_install/amdgpu": File(b"amdgpu_version-override\n"),
        "/etc/modprobe.d/blacklist-radeon.conf": File(b"blacklist radeon\n"),
        **{f"{source}/prebuilt/{name}.ko": File(_prebuilt(driver, name)) for name in MODULES},
    }
    return Deb(
        "amdgpu-dkms",
        driver.version,
        f"simulated amdgpu driver {driver.module_version} in DKMS format",
        architecture="all",
        fields={
            "Section": "misc",
            # AMD's also wants autoconf, automake and libc6-dev; the stubs need no compiler.
            "Depends": "dkms (>= 1.95), initramfs-tools, amdgpu-dkms-firmware",
            "Recommends": "dwarves",
            **dict.fromkeys(("Provides", "Conflicts", "Breaks", "Replaces"), "rock-dkms"),
        },
        files=files,
        conffiles=("/etc/modprobe.d/blacklist-radeon.conf",),
        scripts={
            name: script(f"amdgpu-dkms.{name}", **({"DKMS_VERSION": driver.dkms_version}))
            for name in ("postinst", "prerm", "postrm")
        },
    )


def _prebuilt(driver: Driver, name: str) -> bytes:
    main = name == "amdgpu"
    parms = AMDGPU_PARMS if main else TTM_PARMS if name == "amdttm" else {}
    lab_fields = {"lab_cwsr": driver.lab_cwsr, "lab_gfx": catalog.GFX_TARGETS} if main else {}
    return module_bytes(
        name=name.replace("-", "_"),
        version=driver.module_version,
        srcversion=srcversion("dkms", name, driver.version),
        vermagic=_VERMAGIC_MARK,
        exports=_EXPORTS.get(name, ()),
        imports=[symbol for symbols in _EXPORTS.values() for symbol in symbols] if main else (),
        aliases=(AMDGPU_ALIAS,) if main else (),
        parms=parms,
        **lab_fields,
    )
