# SPDX-License-Identifier: Apache-2.0
"""What the lab serves, and under which names: one home for it.

Everything that these packages stand for is simulated, except those of the ``REAL_*`` lists.
Versions and which driver builds on which kernel follow public reports; the build numbers of
31.20 and 31.30 could not be found and are made up.
"""

from __future__ import annotations

from dataclasses import dataclass

# Where the services listen; guests find the names below at this address by /etc/hosts.
ADDRESS = "10.98.0.2"
HOSTNAMES = (
    "repo.radeon.com",
    "archive.ubuntu.com",
    "security.ubuntu.com",
    "ppa.launchpadcontent.net",
    "keyserver.ubuntu.com",
    "api.launchpad.net",
    "kernel.ubuntu.com",
    "github.com",
    "api.github.com",
    "raw.githubusercontent.com",
    "huggingface.co",
)
CODENAME = "noble"
PPA_OWNER = "lemonade-team"
PPA_NAME = "stable"
# Fetched from Debian as they are and served again: in the simulated PPA, and in the simulated
# archive libc6-dev with what it needs of exactly its own version (Triton's compiler wants it).
REAL_PPA_PACKAGES = ("lemonade-server",)
REAL_ARCHIVE_PACKAGES = (
    *("libc6-dev", "libc-dev-bin", "libc6", "libc-bin", "libcrypt-dev", "libcrypt1"),
    *("linux-libc-dev", "rpcsvc-proto"),
)
# GPU targets that every simulated driver knows.
GFX_TARGETS = "gfx1100,gfx1101,gfx1102,gfx1103,gfx1150,gfx1151,gfx1152,gfx1200,gfx1201"


@dataclass(frozen=True)
class Kernel:
    """One kernel of the simulated archive.

    ``lab_cwsr`` is what KFD shows with its in-tree amdgpu; ``extra`` says that amdgpu comes in
    linux-modules-extra (Ubuntu's generic flavour).
    """

    release: str
    version: str  # of its Debian packages
    lab_cwsr: str
    extra: bool = False

    @property
    def packages(self) -> tuple[str, ...]:
        """Names of the packages that make up this kernel, the image first."""
        kinds = ["image", "modules", *(["modules-extra"] if self.extra else []), "headers"]
        return tuple(f"linux-{kind}-{self.release}" for kind in kinds)


@dataclass(frozen=True)
class MainlineVersion:
    """A version's folder on the simulated kernel.ubuntu.com: no build at all is one that failed."""

    name: str
    builds: tuple[Kernel, ...] = ()


@dataclass(frozen=True)
class Meta:
    """One version of a meta package and what it depends on."""

    name: str
    version: str
    depends: tuple[str, ...]


@dataclass(frozen=True)
class Driver:
    """One driver release in AMD's repository: amdgpu-dkms and its firmware of one build."""

    repository: str
    module_version: str
    build: str  # as in the package version, e.g. 30300000-2278356.24.04
    firmware_version: str
    lab_cwsr: str
    kernel_limit: str  # builds on kernels below this version
    aliases: tuple[str, ...] = ()  # further folders that serve the same

    @property
    def version(self) -> str:
        """Version of the package amdgpu-dkms."""
        return f"1:{self.module_version}.{self.build}"

    @property
    def dkms_version(self) -> str:
        """Version that dkms knows the module by, e.g. 6.16.13-2278356.24.04."""
        return f"{self.module_version}-{self.build.partition('-')[2]}"


OLD_KERNEL = Kernel("6.14.0-37-generic", "6.14.0-37.37~24.04.1", "none", extra=True)
BAD_HWE_KERNEL = Kernel("6.17.0-20-generic", "6.17.0-20.20~24.04.1", "none", extra=True)
HWE_KERNEL = Kernel("7.0.0-31-generic", "7.0.0-31.31~24.04.1", "fixed", extra=True)
OEM_KERNEL = Kernel("6.17.0-1033-oem", "6.17.0-1033.33", "old")
# Mainline builds carry everything in linux-modules; this one is for boxes that keep dkms.
DKMS_KERNEL = Kernel("6.18.20-061820-generic", "6.18.20-061820.202603251312", "fixed")
KERNELS = (OLD_KERNEL, BAD_HWE_KERNEL, HWE_KERNEL, OEM_KERNEL, DKMS_KERNEL)

# Ubuntu's mainline builds are no apt source: a version was built twice, and the newest one failed.
MAINLINE_KERNEL = Kernel("6.18.36-061836-generic", "6.18.36-061836.202606191408", "fixed")
MAINLINE = (
    MainlineVersion("6.17.9", (Kernel("6.17.9-061709-generic", "6.17.9-061709.202511241048", "none"),)),
    MainlineVersion(
        "6.18.36",
        (Kernel(MAINLINE_KERNEL.release, "6.18.36-061836.202606181102", "fixed"), MAINLINE_KERNEL),
    ),
    MainlineVersion("6.18.37"),
    MainlineVersion("7.9-rc2"),
)


def _hwe_metas(kernel: Kernel) -> tuple[Meta, ...]:
    version, release = kernel.version, kernel.release
    image, headers = "linux-image-generic-hwe-24.04", "linux-headers-generic-hwe-24.04"
    return (
        Meta(
            image,
            version,
            (f"linux-image-{release}", f"linux-modules-extra-{release}", "linux-firmware"),
        ),
        Meta(headers, version, (f"linux-headers-{release}",)),
        Meta("linux-generic-hwe-24.04", version, (f"{image} (= {version})", f"{headers} (= {version})")),
    )


def _oem_metas(kernel: Kernel) -> tuple[Meta, ...]:
    version, release = kernel.version, kernel.release
    return (
        Meta("linux-image-oem-24.04d", version, (f"linux-image-{release}", "linux-firmware")),
        Meta("linux-headers-oem-24.04d", version, (f"linux-headers-{release}",)),
        Meta(
            "linux-oem-24.04d",
            version,
            (f"linux-image-oem-24.04d (= {version})", f"linux-headers-oem-24.04d (= {version})"),
        ),
        # 24.04c became a transitional package of the next one.
        Meta("linux-oem-24.04c", version, (f"linux-oem-24.04d (= {version})",)),
    )


METAS = (*_hwe_metas(BAD_HWE_KERNEL), *_hwe_metas(HWE_KERNEL), *_oem_metas(OEM_KERNEL))
LINUX_FIRMWARE_VERSION = "20240318.git3b128b60-0ubuntu2.27"

# Before 30.x the folder had ROCm's number and the firmware package an epoch; 30.x lost the epoch.
DRIVERS = (
    Driver("6.4.1", "6.12.12", "60401-2164967.24.04", "1:6.12.12.60401-2164967.24.04", "none", "6.14"),
    Driver("30.30", "6.16.13", "30300000-2278356.24.04", "30.30.0.0.30300000-2278356.24.04", "none", "6.18"),
    Driver(
        "31.20", "6.19.0", "31200000-2400000.24.04", "1:31.20.0.0.31200000-2400000.24.04", "fixed", "6.20"
    ),
    Driver(
        "31.30",
        "6.19.4",
        "31300000-2337710.24.04",
        "1:31.30.0.0.31300000-2337710.24.04",
        "fixed",
        "7.1",
        aliases=("latest",),
    ),
)
# A folder that a sources line may name and that the server answers with 404.
MISSING_REPOSITORY = "30.30.2"

# ROCm's own repository has ROCm's number, not the driver's. Ubuntu's rocminfo beats AMD's by
# version: without the pin, apt mixes the two.
ROCM_REPOSITORY = "7.2"
ROCMINFO_AMD, ROCMINFO_UBUNTU = "1.0.0.70200-43~24.04", "5.7.1-3build1"
