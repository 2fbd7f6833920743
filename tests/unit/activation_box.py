# SPDX-License-Identifier: Apache-2.0
"""A Strix Halo box around the boot into its kernel, for tests of the activation and of the proof."""

from __future__ import annotations

from pathlib import Path

from driver_box import Box
from trees import GOOD_KERNEL, GOOD_SIZES, OLD_KERNEL

from lemonade_deploy.domain import activation
from lemonade_deploy.domain.proof import ProofWish

PAGES = 25165824
WISH = ProofWish("in-tree", GOOD_KERNEL, PAGES)


def boot(box: Box, number: int) -> Box:
    """The box, in its boot of this *number*."""
    box.file(activation.BOOT_ID, f"0000-{number}\n")
    return box


def good(
    tmp_path: Path,
    kernel: str = GOOD_KERNEL,
    sizes: tuple[int, int] | None = GOOD_SIZES,
    origin: str = "in-tree",
    pages: int = PAGES,
) -> Box:
    """A Strix Halo box that runs *kernel* with these numbers, GRUB's default being the old kernel."""
    box = Box(tmp_path)
    box.kernel(kernel).pci(0x1586, kind=0x038000).cpu_node().kfd_gpu(1, 110501, 0x1586, 80, sizes)
    box.loaded(origin, kernel).file("/sys/module/ttm/parameters/pages_limit", f"{pages}\n")
    return boot(box.kernels(OLD_KERNEL, GOOD_KERNEL), 1).module(GOOD_KERNEL, "in-tree")
