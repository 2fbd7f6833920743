# SPDX-License-Identifier: Apache-2.0
"""Texts of the apt files that a profile lays on a host, as amdgpu-install and Ubuntu write them."""

from __future__ import annotations

from ..catalog import CODENAME

AMDGPU_LIST = "/etc/apt/sources.list.d/amdgpu.list"
ROCM_LIST = "/etc/apt/sources.list.d/rocm.list"
AMDGPU_KEY = "/etc/apt/keyrings/rocm.gpg"
AMDGPU_PIN = "/etc/apt/preferences.d/repo-radeon-pin-600"
UBUNTU_SOURCES = "/etc/apt/sources.list.d/ubuntu.sources"
UBUNTU_KEY = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"


def amdgpu_list(version: str) -> str:
    """amdgpu.list for the driver repository *version* (30.30, latest, …)."""
    where = f"https://repo.radeon.com/amdgpu/{version}/ubuntu {CODENAME} main"
    return (
        f"deb [arch=amd64,i386 signed-by={AMDGPU_KEY}] {where}\n#deb-src [signed-by={AMDGPU_KEY}] {where}\n"
    )


def rocm_list(version: str) -> str:
    """rocm.list for ROCm *version*: AMD's other repository, numbered by ROCm."""
    where = f"https://repo.radeon.com/rocm/apt/{version} {CODENAME} main"
    return f"deb [arch=amd64 signed-by={AMDGPU_KEY}] {where}\n"


def amdgpu_pin() -> str:
    """The pin that makes AMD's packages win over Ubuntu's."""
    return "Package: *\nPin: release o=repo.radeon.com\nPin-Priority: 600\n"


def amdgpu_install_files(version: str, key: bytes) -> dict[str, bytes]:
    """The conffiles of the package amdgpu-install; *key* is the repository's key (dearmored)."""
    return {
        AMDGPU_LIST: amdgpu_list(version).encode(),
        AMDGPU_KEY: key,
        AMDGPU_PIN: amdgpu_pin().encode(),
    }


def ubuntu_files(key: bytes) -> dict[str, bytes]:
    """The distribution's own source and key; *key* is the archive's key (dearmored)."""
    text = (
        "Types: deb\n"
        "URIs: http://archive.ubuntu.com/ubuntu/\n"
        f"Suites: {CODENAME}\n"
        "Components: main\n"
        f"Signed-By: {UBUNTU_KEY}\n"
    )
    return {UBUNTU_SOURCES: text.encode(), UBUNTU_KEY: key}
