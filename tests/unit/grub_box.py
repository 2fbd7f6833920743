# SPDX-License-Identifier: Apache-2.0
"""A box with GRUB and two kernels, for tests of what it boots."""

from __future__ import annotations

from pathlib import Path

from driver_box import Box
from trees import GOOD_KERNEL, OLD_KERNEL

from lemonade_deploy.domain import activation, grub

OLD, NEW = OLD_KERNEL, GOOD_KERNEL


def box_of(tmp_path: Path, running: str = OLD) -> Box:
    """Two kernels with their amdgpu, of which *running* runs; GRUB boots the newer one by default."""
    box = Box(tmp_path)
    box.kernel(running)
    box.file(activation.BOOT_ID, "0000-1\n")
    return box.kernels(OLD, NEW).module(OLD, "in-tree").module(NEW, "in-tree")


def state_of(box: Box) -> grub.Grub:
    """GRUB as it is on the box now."""
    state = grub.read(box.host)
    assert state is not None
    return state
