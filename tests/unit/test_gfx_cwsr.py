# SPDX-License-Identifier: Apache-2.0
"""GPU names and the sizes of compute wave save/restore."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy.domain import cwsr, gfx


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (110501, "gfx1151"),
        (110500, "gfx1150"),
        (110502, "gfx1152"),
        (110000, "gfx1100"),
        (110003, "gfx1103"),
        (120001, "gfx1201"),
        (120000, "gfx1200"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (90010, "gfx90a"),
        (90008, "gfx908"),
        (90012, "gfx90c"),
        (100300, "gfx1030"),
    ],
)
def test_decode_writes_minor_and_stepping_in_hex(number: int, name: str) -> None:
    assert gfx.decode(number) == name
    assert gfx.encode(name) == number


@pytest.mark.parametrize("number", [0, -1, 999999999, 111701, 110016])
def test_decode_refuses_what_no_gpu_has(number: int) -> None:
    with pytest.raises(ValueError, match="no gfx_target_version"):
        gfx.decode(number)


@pytest.mark.parametrize(
    ("isa", "family", "support"),
    [
        ("gfx1100", "gfx110X", "published"),
        ("gfx1103", "gfx110X", "published"),
        ("gfx1150", "gfx1150", "published"),
        ("gfx1151", "gfx1151", "validated"),
        ("gfx1152", None, "none"),
        ("gfx1201", "gfx120X", "published"),
        ("gfx942", None, "none"),
        ("gfx1030", None, "none"),
    ],
)
def test_family_and_support(isa: str, family: str | None, support: str) -> None:
    assert (gfx.family(isa), gfx.support(isa)) == (family, support)


def test_device_table_names_only_decodable_isas_and_knows_apus() -> None:
    for device in gfx.DEVICES.values():
        assert gfx.decode(gfx.encode(device.gfx)) == device.gfx
    assert gfx.DEVICES[0x1586] == gfx.Device("gfx1151", True, "Strix Halo")
    assert not gfx.DEVICES[0x744C].apu
    assert {gfx.DEVICES[d].gfx for d in (0x150E, 0x1114, 0x15BF, 0x1900)} == {"gfx1150", "gfx1152", "gfx1103"}


# (ISA, CUs, simd_count, ctl_stack_size, cwsr_size): computed from kfd_queue.c; the first is seen on hardware.
TABLE = [
    ("gfx1151", 40, 80, 16384, 19185664),
    ("gfx1151", 32, 64, 16384, 15351808),
    ("gfx1151", 16, 32, 8192, 7675904),
    ("gfx1150", 16, 32, 8192, 5578752),
    ("gfx1150", 12, 24, 8192, 4186112),
    ("gfx1103", 12, 24, 8192, 4186112),
    ("gfx1152", 8, 16, 4096, 2789376),
    ("gfx1103", 8, 16, 4096, 2789376),
    ("gfx1100", 96, 192, 40960, 46047232),
    ("gfx1100", 84, 168, 32768, 40288256),
    ("gfx1101", 60, 120, 24576, 28778496),
    ("gfx1101", 54, 108, 24576, 25903104),
    ("gfx1102", 32, 64, 16384, 11157504),
    ("gfx1201", 64, 128, 28672, 30699520),
    ("gfx1201", 56, 112, 24576, 26861568),
    ("gfx1200", 32, 64, 16384, 15351808),
]


@pytest.mark.parametrize(("isa", "cus", "simds", "control", "total"), TABLE)
def test_formula_gives_the_table(isa: str, cus: int, simds: int, control: int, total: int) -> None:
    assert cwsr.cu_count(simds, 2, 1) == cus
    assert cwsr.sizes(isa, cus) == cwsr.Sizes(total, control)
    assert cwsr.judge(isa, cus, total, control).verdict == "ok"


@pytest.mark.parametrize(("cus", "old"), [(40, 13942784), (32, 11157504), (16, 5578752)])
def test_old_register_size_is_told_from_wrong(cus: int, old: int) -> None:
    control = cwsr.sizes("gfx1151", cus).ctl_stack_size
    assert cwsr.judge("gfx1151", cus, old, control).verdict == "old-vgpr"
    assert cwsr.judge("gfx1151", cus, old + 4096, control).verdict == "wrong"


@pytest.mark.parametrize(
    ("size", "control", "verdict"),
    [
        (None, None, "missing"),
        (19185664, None, "missing"),
        (None, 16384, "missing"),
        (19185664, 16384, "ok"),
        (19185664 + 4096, 16384, "ok"),
        (19185664 + 1, 16384, "wrong"),
        (19185664 - 4096, 16384, "wrong"),
        (19185664, 8192, "wrong"),
        (0, 0, "wrong"),
        (-19185664, 16384, "wrong"),
    ],
)
def test_verdicts_of_a_40_cu_strix_halo(size: int | None, control: int | None, verdict: str) -> None:
    judged = cwsr.judge("gfx1151", 40, size, control)
    assert judged.verdict == verdict
    assert judged.above == (size == 19185664 + 4096)


def test_no_cu_count_is_no_proof() -> None:
    assert cwsr.cu_count(0, 2) is None
    assert cwsr.cu_count(81, 2) is None
    assert cwsr.cu_count(80, 0) is None
    assert cwsr.judge("gfx1151", None, 19185664, 16384).verdict == "wrong"


@given(st.sampled_from(sorted(gfx.FAMILIES)), st.integers(1, 300))
def test_sizes_are_whole_pages_and_only_they_are_ok(isa: str, cus: int) -> None:
    wanted = cwsr.sizes(isa, cus)
    assert wanted.cwsr_size % cwsr.PAGE == 0 == wanted.ctl_stack_size % cwsr.PAGE
    assert cwsr.judge(isa, cus, wanted.cwsr_size, wanted.ctl_stack_size).verdict == "ok"
    assert cwsr.judge(isa, cus, wanted.cwsr_size - 1, wanted.ctl_stack_size).verdict != "ok"
