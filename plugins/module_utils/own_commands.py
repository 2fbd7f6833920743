# SPDX-License-Identifier: Apache-2.0
"""Where the kit has no package backend (Fedora, RHEL, Arch, SUSE): what the owner types there instead."""

from __future__ import annotations

from .distribution import Distribution

# By what os-release says in ID, then in ID_LIKE.
_KERNEL = {
    "fedora": "sudo dnf upgrade --refresh 'kernel*' && sudo reboot",
    "rhel": "sudo dnf upgrade 'kernel*' && sudo reboot",
    "centos": "sudo dnf upgrade 'kernel*' && sudo reboot",
    "arch": "sudo pacman -Syu linux && sudo reboot",
    "opensuse-tumbleweed": "sudo zypper dup && sudo reboot",
    "suse": "sudo zypper update kernel-default && sudo reboot",
    "sles": "sudo zypper update kernel-default && sudo reboot",
}
_REMOVE = {
    "fedora": "sudo dnf remove amdgpu-dkms amdgpu-dkms-firmware && sudo dracut --force --regenerate-all",
    "rhel": "sudo dnf remove amdgpu-dkms amdgpu-dkms-firmware && sudo dracut --force --regenerate-all",
    "centos": "sudo dnf remove amdgpu-dkms amdgpu-dkms-firmware && sudo dracut --force --regenerate-all",
    "arch": "sudo pacman -R amdgpu-dkms && sudo mkinitcpio -P",
    "suse": "sudo zypper remove amdgpu-dkms amdgpu-dkms-firmware && sudo dracut --force --regenerate-all",
    "sles": "sudo zypper remove amdgpu-dkms amdgpu-dkms-firmware && sudo dracut --force --regenerate-all",
}


def _find(table: dict[str, str], distribution: Distribution, otherwise: str) -> str:
    names = (distribution.id, *distribution.like)
    return next((table[name] for name in names if name in table), otherwise)


def kernel(distribution: Distribution) -> str:
    """The way to a newer kernel."""
    return _find(_KERNEL, distribution, "install a kernel of 6.18.4 or later and reboot")


def remove_dkms(distribution: Distribution) -> str:
    """The way to be rid of AMD's DKMS driver."""
    return _find(_REMOVE, distribution, "remove the package amdgpu-dkms, rebuild the initramfs and reboot")
