# SPDX-License-Identifier: Apache-2.0
"""The result of one simulated boot, as the firmware decides it and the view shows it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Driver:
    """The amdgpu module that the booted machine loaded."""

    origin: str  # in-tree | dkms
    path: str  # below /lib/modules
    stage: str  # initramfs | root: where the module came from
    version: str | None  # only DKMS modules carry one
    srcversion: str
    cwsr: str  # none | old | fixed
    gfx: tuple[str, ...]  # targets that it knows
    parameters: dict[str, str] = field(default_factory=dict)  # amdgpu's
    ttm_module: str = "ttm"  # amdttm beside a DKMS driver
    ttm_parameters: dict[str, str] = field(default_factory=dict)
    mes_firmware: int | None = None  # version of gfx1151's MES firmware that it found


@dataclass(frozen=True)
class Boot:
    """What booted. ``kernel`` "" means that the disk holds none (the machine's own is shown)."""

    entry: str
    kernel: str
    cmdline: str
    driver: Driver | None
    reason: str  # why this driver, or why none
    network: bool = True  # False: the kernel has no driver for the machine's NIC
    resets: tuple[str, ...] = ()  # why earlier attempts of this power-up ended in a reset
