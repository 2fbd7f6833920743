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


# What a verdict means, for people.
_MEANS = {OK: "works", WARNING: "may fail", NO: "does not work"}


class Pair(NamedTuple):
    """What the table says of a pair, ``why`` in words. ``listed``: whether ROCm's version has its own row."""

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
        unread = f"the ROCm version of the release ({rocm or 'none'})" if kernel else f"kernel {release}"
        return Pair(WARNING, False, f"{unread} is of no form that AMD's table could be asked about")
    place = column(kernel)
    row = _ROWS.get(number) or _ROWS.get(number[:2])
    if row is not None:
        verdict = row[_COLUMNS.index(place)]
        return Pair(verdict, True, f"by AMD's table kernel {release} with ROCm {rocm} {_MEANS[verdict]}")
    if number < _AS_LAST:
        why = f"AMD's table does not name ROCm {rocm}, so it says nothing of it with kernel {release}"
        return Pair(WARNING, False, why)
    verdict = _ROWS[_LAST][_COLUMNS.index(place)]
    newest = ".".join(map(str, _LAST))
    why = (
        f"ROCm {rocm} is newer than AMD's table, which says nothing of it with kernel {release}; with ROCm "
        f"{newest}, the newest in the table, this kernel {_MEANS[verdict]}"
    )
    return Pair(verdict, False, why)
