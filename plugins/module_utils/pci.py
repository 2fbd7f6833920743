# SPDX-License-Identifier: Apache-2.0
"""AMD's GPUs on the PCI bus. The bus decides whether there is a GPU; drivers come later."""

from __future__ import annotations

from typing import NamedTuple

from .gfx import AMD_VENDOR, DEVICES, Device
from .host import Host

DEVICES_DIR = "/sys/bus/pci/devices"
DISPLAY_CLASS = 0x03  # base class: VGA, 3D and other display controllers


class PciGpu(NamedTuple):
    """A display controller of AMD's: its address (0000:c5:00.0), device id, and what it is.

    ``known`` is None where the table of device ids does not list it.
    """

    address: str
    device_id: int
    known: Device | None
    driver: str | None


def number(text: str | None) -> int | None:
    """A sysfs number (0x1002, 4098), or None for anything else."""
    try:
        return int(text or "", 0)
    except ValueError:
        return None


def _gpu(host: Host, address: str) -> PciGpu | None:
    base = f"{DEVICES_DIR}/{address}"
    if number(host.value(f"{base}/vendor")) != AMD_VENDOR:
        return None
    device_id = number(host.value(f"{base}/device"))
    if device_id is None:
        return None
    known = DEVICES.get(device_id)
    device_class = number(host.value(f"{base}/class"))
    # Audio and USB functions of a GPU carry AMD's vendor id too; an accelerator without a display
    # engine (class 12xx) counts because the table knows it.
    if known is None and (device_class is None or device_class >> 16 != DISPLAY_CLASS):
        return None
    driver = host.readlink(f"{base}/driver")
    return PciGpu(address, device_id, known, driver.rsplit("/", 1)[-1] if driver else None)


def read_gpus(host: Host) -> list[PciGpu]:
    """AMD's GPUs on the bus, by address."""
    found = (_gpu(host, address) for address in host.listdir(DEVICES_DIR))
    return [gpu for gpu in found if gpu is not None]
