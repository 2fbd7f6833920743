# SPDX-License-Identifier: Apache-2.0
"""A virtual machine (QEMU, software emulation) that really boots another kernel.

The hosts of the lab are containers: whatever kernel they show, the machine's own does the work.
Here a real Debian 13 with real GRUB boots a really newer kernel, falls back from it, and proves what
the roles kernel and activate do. Simulated is only the GPU: a unit in the guest binds what a Strix
Halo box shows over /sys, by the kernel that really runs.
"""

from __future__ import annotations

from .image import Image, base_image
from .kernels import Kernels, newer_kernel, with_fault
from .machine import Machine
from .repository import Repository

__all__ = ["Image", "Kernels", "Machine", "Repository", "base_image", "newer_kernel", "with_fault"]
