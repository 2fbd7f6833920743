# SPDX-License-Identifier: Apache-2.0
"""Which kernels AMD says go with which ROCm on gfx1151: both halves of the CWSR fix must meet. Pure.

Source: rocm.docs.amd.com, "Strix Halo system optimization", table "Required kernel version". Kernel and
ROCm must move together: a new kernel under an old ROCm faults just as the other way round. Other GPUs
have no such table. The table is about the kernel's own driver.
"""

from __future__ import annotations

from typing import NamedTuple

from . import kernels
from .kernels import Kernel

OK, WARNING, NO = "ok", "warning", "no"
GFX = "gfx1151"
KIND = "rocm-kernel-refused"  # the finding
# Columns: what the table calls a kernel.
NEW = "24.04 OEM 6.14.0-1018 or later, 26.04, others 6.18.4 or later"
HWE = "24.04 HWE (6.17)"
OLD_OEM = "24.04 OEM 6.14.0-1017 or earlier"
OLD = "others before 6.18.4"
_COLUMNS = (NEW, HWE, OLD_OEM, OLD)

_NEW_ROCM = (OK, WARNING, WARNING, WARNING)
_ROCM_720 = (OK, NO, OK, NO)
_OLD_ROCM = (NO, WARNING, WARNING, WARNING)
# Rows match exactly: a row of two numbers means all of that series, one of three just that release.
_ROWS: dict[tuple[int, ...], tuple[str, ...]] = {
    (7, 11, 0): _NEW_ROCM,
    (7, 2, 1): _NEW_ROCM,
    (7, 2, 0): _ROCM_720,
    (7, 10): _OLD_ROCM,
    (7, 9): _OLD_ROCM,
    (7, 1): _OLD_ROCM,
    (6, 4): _OLD_ROCM,
}
_LAST = (7, 11, 0)
# From here on a ROCm that is not in the table is judged as the newest row.
_AS_LAST = (7, 12)


class Pair(NamedTuple):
    """What the table says of a pair. ``listed``: whether ROCm's version has a row of its own."""

    verdict: str
    listed: bool
    why: str


def column(kernel: Kernel) -> str:
    """The table's column for a kernel."""
    if kernel.flavour == "oem":
        if kernel.series > (6, 14) or (kernel.series == (6, 14) and (kernel.abi or 0) >= 1018):
            return NEW
        return OLD_OEM
    if kernel.flavour == "generic" and kernel.series == (6, 17):
        return HWE
    return NEW if kernel.version >= (6, 18, 4) else OLD


def _number(rocm: str) -> tuple[int, ...]:
    numbers = [int(part) for part in rocm.split(".") if part.isdecimal()]
    return tuple([*numbers, 0, 0, 0][:3]) if numbers else ()


def judge(rocm: str, release: str) -> Pair:
    """AMD's word on ROCm *rocm* (``7.15.0``) on the kernel *release*; a warning where there is none."""
    kernel, number = kernels.parse(release), _number(rocm)
    if kernel is None or not number:
        return Pair(WARNING, False, f"AMD's table knows neither ROCm {rocm or '?'} nor kernel {release}")
    place = column(kernel)
    row = _ROWS.get(number) or _ROWS.get(number[:2])
    if row is not None:
        verdict = row[_COLUMNS.index(place)]
        return Pair(verdict, True, f'AMD\'s table for ROCm {rocm} and kernels "{place}": {verdict}')
    if number < _AS_LAST:
        return Pair(WARNING, False, f"AMD's table has no row for ROCm {rocm}")
    verdict = _ROWS[_LAST][_COLUMNS.index(place)]
    why = f'ROCm {rocm} is newer than AMD\'s table, its newest row (7.11.0) says for "{place}": {verdict}'
    return Pair(verdict, False, why)
