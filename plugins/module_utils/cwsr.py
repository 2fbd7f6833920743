# SPDX-License-Identifier: Apache-2.0
"""Compute wave save/restore: the sizes a fixed kernel exports, and a verdict on what is there.

Source: Linux, drivers/gpu/drm/amd/amdkfd/kfd_queue.c, kfd_queue_ctx_save_restore_size(). Two commits
make gfx1151 work: cf326449637a "bump minimum vgpr size for gfx1151" and 8fc2796dea6f "Export the
cwsr_size and ctl_stack_size to userspace" (6.18.4, 6.19, 6.12.64). They are separate, so lines that
are there prove nothing yet: the numbers must be those of the formula. All sizes are bytes.
"""

from __future__ import annotations

from typing import NamedTuple

PAGE = 4096
SGPR_PER_CU = 0x4000
LDS_PER_CU = 0x10000
HWREG_PER_CU = 0x1000
CONTROL_HEADER = 40  # sizeof(struct kfd_context_save_area_header)
CONTROL_PER_WAVE = 12  # CNTL_STACK_BYTES_PER_WAVE for gfx10.1 and later
CONTROL_TAIL = 8
WAVES_PER_CU = 32
GFX10_CONTROL_LIMIT = 0x7000  # the hardware's limit on gfx10.x

VGPR_DEFAULT = 0x40000
VGPR_LARGE = 0x60000
VGPR_CDNA = 0x80000
LARGE_VGPR = frozenset({"gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201"})
CDNA = frozenset({"gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"})
# What a kernel without the first commit still computes with.
OLD_VGPR = {"gfx1151": VGPR_DEFAULT}

# ISAs on which user space cannot work without the exported sizes.
NEEDS_EXPORT = frozenset({"gfx1151"})


class Sizes(NamedTuple):
    """``cwsr_size`` and ``ctl_stack_size`` of one GPU, in bytes."""

    cwsr_size: int
    ctl_stack_size: int


class Verdict(NamedTuple):
    """What the exported numbers say. ``verdict``: ok, missing, old-vgpr or wrong.

    ``above`` marks an ok value larger than the formula's (a newer kernel may save more).
    """

    verdict: str
    why: str
    above: bool = False


def _align(value: int, to: int = PAGE) -> int:
    return (value + to - 1) // to * to


def cu_count(simd_count: int, simd_per_cu: int, num_xcc: int = 1) -> int | None:
    """Compute units of one XCC, or None where the numbers cannot be right."""
    divisor = simd_per_cu * (num_xcc or 1)
    if simd_count <= 0 or divisor <= 0 or simd_count % divisor:
        return None
    return simd_count // divisor


def vgpr_bytes(gfx: str) -> int:
    """Vector registers one CU saves, as a fixed kernel counts them."""
    if gfx in CDNA:
        return VGPR_CDNA
    return VGPR_LARGE if gfx in LARGE_VGPR else VGPR_DEFAULT


def sizes(gfx: str, cus: int, vgpr: int | None = None) -> Sizes:
    """The sizes a kernel computes for *cus* compute units; ``vgpr`` overrides the register bytes.

    For gfx10.1 and later only: older ones count waves another way.
    """
    per_cu = (vgpr_bytes(gfx) if vgpr is None else vgpr) + SGPR_PER_CU + LDS_PER_CU + HWREG_PER_CU
    control = _align(CONTROL_HEADER + cus * WAVES_PER_CU * CONTROL_PER_WAVE + CONTROL_TAIL)
    if gfx.startswith("gfx10"):
        control = min(control, GFX10_CONTROL_LIMIT)
    return Sizes(control + _align(cus * per_cu), control)


def expected(gfx: str, cus: int | None) -> Sizes | None:
    """What a fixed kernel must show, or None where the CU count is not known."""
    return None if not cus or gfx.startswith("gfx9") else sizes(gfx, cus)


def judge(gfx: str, cus: int | None, cwsr_size: int | None, ctl_stack_size: int | None) -> Verdict:
    """Compare a node's exported sizes (None where the line is absent) with the formula."""
    if cwsr_size is None or ctl_stack_size is None:
        absent = " and ".join(
            name
            for name, value in (("cwsr_size", cwsr_size), ("ctl_stack_size", ctl_stack_size))
            if value is None
        )
        return Verdict("missing", f"the driver does not export {absent}")
    wanted = expected(gfx, cus)
    if wanted is None:
        return Verdict("wrong", "the node's simd_count and simd_per_cu give no CU count to judge by")
    shown = f"cwsr_size {cwsr_size}, ctl_stack_size {ctl_stack_size}"
    formula = f"{wanted.cwsr_size} and {wanted.ctl_stack_size} for {cus} CUs of {gfx}"
    if (cwsr_size, ctl_stack_size) == (wanted.cwsr_size, wanted.ctl_stack_size):
        return Verdict("ok", f"{shown}: as the formula says")
    old = sizes(gfx, cus or 0, OLD_VGPR[gfx]) if gfx in OLD_VGPR else None
    if old is not None and cwsr_size == old.cwsr_size:
        return Verdict(
            "old-vgpr", f"{shown}: exported, but with the old register size; the formula gives {formula}"
        )
    whole_pages = cwsr_size % PAGE == 0 and ctl_stack_size % PAGE == 0
    if whole_pages and cwsr_size >= wanted.cwsr_size and ctl_stack_size >= wanted.ctl_stack_size:
        return Verdict("ok", f"{shown}: above the formula's {formula}", above=True)
    return Verdict("wrong", f"{shown}: the formula gives {formula}")
