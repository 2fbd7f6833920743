# SPDX-License-Identifier: Apache-2.0
"""How a host got into the state that a profile names: commands, run with the host's own tools.

Nothing here writes what a package or tool would write itself; the one exception is the files that
a user lays down by hand (AMD's sources line, key and pin).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from . import catalog
from .services import sources

APT = ("apt-get", "-y", "-q", "-o", "DPkg::Options::=--force-confold")


@dataclass(frozen=True)
class Step:
    """A command on the host; ``fails`` marks one that is meant to end with an error."""

    argv: tuple[str, ...]
    fails: bool = False


@dataclass(frozen=True)
class Recipe:
    """A layer: over ``below`` (a recipe's name, or "" for the base root) come files, then steps.

    ``running`` is the kernel release that the host runs meanwhile (what ``uname -r`` says).
    """

    name: str
    below: str
    running: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


def recipes(keys: Mapping[str, bytes]) -> dict[str, Recipe]:
    """All recipes by name; *keys* are the dearmored repository keys by role."""
    old, fixed = catalog.OLD_KERNEL.release, catalog.HWE_KERNEL.release
    ubuntu = sources.ubuntu_files(keys["archive"])
    amd = sources.amdgpu_install_files("30.30", keys["amd"])
    update = Step((*APT, "update"))
    found = (
        Recipe(
            "clean",
            "",
            fixed,
            ubuntu,
            (update, Step((*APT, "install", "linux-generic-hwe-24.04"))),
        ),
        Recipe(
            "dirty",
            "",
            old,
            {**ubuntu, **amd},
            (
                update,
                Step((*APT, "install", "linux-firmware", *_kernel(old))),
                Step((*APT, "install", "amdgpu-dkms", "amdgpu-dkms-firmware")),
            ),
        ),
        # A newer kernel came (an HWE upgrade), AMD's driver does not build on it, and whoever
        # installed the driver again was left with a half-configured package and its blacklist,
        # which the next initramfs took over.
        Recipe(
            "dark",
            "dirty",
            old,
            {},
            (
                Step((*APT, "install", *_kernel(fixed)[:-1])),
                Step((*APT, "install", _kernel(fixed)[-1]), fails=True),
                Step((*APT, "install", "--reinstall", "amdgpu-dkms"), fails=True),
                Step(("update-initramfs", "-u", "-k", "all")),
            ),
        ),
        # AMD's driver was brought to a good release, then a kernel with the fix came without headers:
        # dkms built nothing for it, so the kernel's own module runs and AMD's package only waits.
        Recipe(
            "inactive",
            "dirty",
            old,
            sources.amdgpu_install_files("31.20", keys["amd"]),
            (
                update,
                Step((*APT, "install", "amdgpu-dkms", "amdgpu-dkms-firmware")),
                Step((*APT, "install", *_kernel(fixed)[:-1])),
            ),
        ),
    )
    return {recipe.name: recipe for recipe in found}


def _kernel(release: str) -> tuple[str, ...]:
    return tuple(f"linux-{part}-{release}" for part in ("image", "modules-extra", "headers"))
