# SPDX-License-Identifier: Apache-2.0
"""The first boot of a fresh disk: the guest writes its own boot menu, then its state is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

from .image import SNAPSHOT, Image
from .machine import Machine, end_left

# Every later run would pay for it under emulation: Python's compiled files.
_WARM = "python3 -c 'import json, subprocess, tempfile, apt_pkg, zipfile, base64, ssl, email.message'"
FOLDER = "first"


def discard(building: Path) -> None:
    """Remove what a build that was killed left."""
    end_left(building / FOLDER)
    shutil.rmtree(building, ignore_errors=True)


def first_boot(image: Image) -> None:
    """Boot *image* once and leave :data:`SNAPSHOT` in its disk. Raises LabError."""
    with Machine(image, image.folder / FOLDER, image.disk) as machine:
        machine.start()
        machine.wait(600)
        machine.demand("update-grub 2>&1", timeout=300)
        machine.demand(f"grub-editenv /boot/grub/grubenv create; {_WARM}; sync", timeout=300)
        machine.save(SNAPSHOT)
        machine.stop()
        machine.disk.replace(image.disk)
        machine.remove()
