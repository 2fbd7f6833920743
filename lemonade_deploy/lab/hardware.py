# SPDX-License-Identifier: Apache-2.0
"""The hardware that a simulated host pretends to have.

PCI ids and gfx targets: AMD's public tables; node properties as KFD prints them on such a
machine (simd_count is CUs x simd_per_cu).
"""

from __future__ import annotations

from dataclasses import dataclass, field

GIB = 1024**3


@dataclass(frozen=True)
class Gpu:
    """One AMD GPU. Sizes in bytes."""

    gfx_target_version: int  # 110501 is gfx1151
    pci_device: int
    pci_address: str
    simd_count: int
    vram: int
    apu: bool
    name: str
    simd_per_cu: int = 2
    array_count: int = 4
    simd_arrays_per_engine: int = 2
    num_xcc: int = 1
    revision: int = 0
    # MES firmware as fw_version/mes_fw_version shows it; 0x83 is the bad one of Strix Halo.
    mes_firmware: int = 0x80

    @property
    def gfx(self) -> str:
        """The target's name (minor and step in hexadecimal, as ROCm writes it)."""
        major, rest = divmod(self.gfx_target_version, 10000)
        return f"gfx{major}{rest // 100:x}{rest % 100:x}"

    def cwsr_sizes(self, old: bool = False) -> tuple[int, int]:
        """(cwsr_size, ctl_stack_size) in bytes that KFD exports; ``old``: gfx1151 before its VGPR fix.

        Written from kfd_queue.c (kfd_queue_ctx_save_restore_size) apart from the kit's own
        formula on purpose: the lab is what that one is tested against.
        """
        cus = self.simd_count // self.simd_per_cu // self.num_xcc
        big = {110000, 110001, 120000, 120001} | (set() if old else {110501})
        vgpr = 0x60000 if self.gfx_target_version in big else 0x40000
        saved = _page_aligned(cus * (vgpr + 0x4000 + 0x10000 + 0x1000))
        control = _page_aligned(40 + cus * 32 * 12 + 8)
        return control + saved, control


def _page_aligned(size: int) -> int:
    return -(-size // 4096) * 4096


@dataclass(frozen=True)
class Hardware:
    """A machine: its GPUs, in the order the PCI bus lists them."""

    name: str
    gpus: tuple[Gpu, ...] = field(default=())


STRIX_HALO = Gpu(
    gfx_target_version=110501,
    pci_device=0x1586,
    pci_address="0000:c5:00.0",
    simd_count=80,
    vram=GIB // 2,
    apu=True,
    name="Radeon 8060S",
    revision=0xC1,
)
STRIX_POINT = Gpu(
    gfx_target_version=110500,
    pci_device=0x150E,
    pci_address="0000:c4:00.0",
    simd_count=32,
    vram=GIB // 2,
    apu=True,
    name="Radeon 890M",
)
RX_7900_XTX = Gpu(
    gfx_target_version=110000,
    pci_device=0x744C,
    pci_address="0000:03:00.0",
    simd_count=192,
    vram=24 * GIB,
    apu=False,
    name="Radeon RX 7900 XTX",
    array_count=12,
)
RX_9070_XT = Gpu(
    gfx_target_version=120001,
    pci_device=0x7550,
    pci_address="0000:03:00.0",
    simd_count=128,
    vram=16 * GIB,
    apu=False,
    name="Radeon RX 9070 XT",
    array_count=8,
)

MACHINES = {
    machine.name: machine
    for machine in (
        Hardware("strix-halo", (STRIX_HALO,)),
        Hardware("strix-point", (STRIX_POINT,)),
        Hardware("rdna3-7900xtx", (RX_7900_XTX,)),
        Hardware("rdna4-9070xt", (RX_9070_XT,)),
        Hardware("hybrid", (RX_7900_XTX, STRIX_POINT)),
        Hardware("no-gpu"),
    )
}
