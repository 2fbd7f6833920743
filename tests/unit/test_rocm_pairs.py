# SPDX-License-Identifier: Apache-2.0
"""AMD's table of kernels and ROCm versions for gfx1151: every row in every column."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import GOOD_KERNEL, GOOD_SIZES, radeon, strix_halo

from lemonade_deploy.domain import preflight, releases, rocm_pairs
from lemonade_deploy.domain.decision import Wishes, decide
from lemonade_deploy.domain.facts import read_facts
from lemonade_deploy.domain.module import Refused

OK, WARNING, NO = "ok", "warning", "no"
# A kernel of each column.
NEW = ("6.14.0-1018-oem", "6.17.0-1033-oem", "7.0.0-31-generic", "7.0.0-1005-oem", "6.18.4-061804-generic")
NEW += ("6.18.9-200.fc43.x86_64", "7.1.8+deb13-amd64", "6.18.4-arch1-1", "6.19.0-061900-generic")
HWE = ("6.17.0-20-generic", "6.17.0-22-generic")
OLD_OEM = ("6.14.0-1017-oem", "6.11.0-1027-oem")
OLD = ("6.14.0-37-generic", "6.18.3-061803-generic", "6.12.107+deb13-amd64", "6.8.0-45-generic")
COLUMNS = (NEW, HWE, OLD_OEM, OLD)


@pytest.mark.parametrize(
    ("rocm", "row"),
    [
        ("7.11.0", (OK, WARNING, WARNING, WARNING)),
        ("7.11", (OK, WARNING, WARNING, WARNING)),
        ("7.2.1", (OK, WARNING, WARNING, WARNING)),
        ("7.2.0", (OK, NO, OK, NO)),
        ("7.2", (OK, NO, OK, NO)),
        ("7.10.0", (NO, WARNING, WARNING, WARNING)),
        ("7.9.0", (NO, WARNING, WARNING, WARNING)),
        ("7.1.0", (NO, WARNING, WARNING, WARNING)),
        ("7.1.1", (NO, WARNING, WARNING, WARNING)),
        ("6.4.4", (NO, WARNING, WARNING, WARNING)),
    ],
)
def test_listed_rows_match_exactly(rocm: str, row: tuple[str, ...]) -> None:
    for kernels, verdict in zip(COLUMNS, row, strict=True):
        for kernel in kernels:
            pair = rocm_pairs.judge(rocm, kernel)
            assert (pair.verdict, pair.listed) == (verdict, True), kernel


@pytest.mark.parametrize("rocm", ["7.12.0", "7.13.0", "7.15.0", "10.0.0", "7.12"])
def test_a_newer_rocm_counts_as_the_newest_row_and_is_not_listed(rocm: str) -> None:
    for kernels, verdict in zip(COLUMNS, (OK, WARNING, WARNING, WARNING), strict=True):
        for kernel in kernels:
            pair = rocm_pairs.judge(rocm, kernel)
            assert (pair.verdict, pair.listed) == (verdict, False)
            assert f"ROCm {rocm} is newer than AMD's table, which says nothing of it with kernel" in pair.why


@pytest.mark.parametrize("rocm", ["7.2.2", "7.2.4", "7.0.2", "6.3.0", "7.11.1", "5.7"])
def test_what_is_not_listed_before_that_is_a_warning(rocm: str) -> None:
    pair = rocm_pairs.judge(rocm, NEW[2])
    why = f"AMD's table does not name ROCm {rocm}, so it says nothing of it with kernel {NEW[2]}"
    assert pair == (WARNING, False, why)


def test_what_cannot_be_read_is_a_warning() -> None:
    assert rocm_pairs.judge("", NEW[0])[:2] == (WARNING, False)
    assert rocm_pairs.judge("7.11.0", "custom")[:2] == (WARNING, False)


@given(st.text(), st.text())
def test_any_texts(rocm: str, release: str) -> None:
    assert rocm_pairs.judge(rocm, release).verdict in (OK, WARNING, NO)


@pytest.mark.parametrize(
    ("base", "rocm"),
    [
        (releases.DEFAULT_BASE, "7.15.0"),
        ("vllm0.20.1-rocm7.12.0", "7.12.0"),
        ("vllm0.19.0-rocm7.2", "7.2"),
        ("vllm0.25.2.dev0+rocm7.15.0a20260724.g7-rocm7.11.0a20260101", "7.11.0"),
        ("vllm-omni0.1", ""),
    ],
)
def test_rocm_of_a_release(base: str, rocm: str) -> None:
    assert releases.rocm(base) == rocm


def ids(path: Path, kernel: str, release: str) -> list[str]:
    tree = strix_halo(path, kernel, GOOD_SIZES)
    report = preflight.look(
        tree.host, read_facts(tree.host), Wishes(release=release), lambda *_: ([], []), 20
    )
    return preflight.ids(report.findings)


def test_a_no_refuses_and_names_both(tmp_path: Path) -> None:
    found = read_facts(strix_halo(tmp_path).host)
    with pytest.raises(Refused, match="do not go together on gfx1151: by AMD's table kernel") as caught:
        decide(found, Wishes(release="vllm0.19.0-rocm7.10.0"))
    assert GOOD_KERNEL in caught.value.found and "vllm0.19.0-rocm7.10.0" in caught.value.found
    assert ids(tmp_path / "b", GOOD_KERNEL, "vllm0.19.0-rocm7.10.0") == ["rocm-kernel-refused"]


def test_a_warning_warns_and_ok_is_silent(tmp_path: Path) -> None:
    assert ids(tmp_path / "a", "6.17.0-22-generic", "vllm0.19.0-rocm7.11.0") == ["rocm-kernel-pair"]
    assert ids(tmp_path / "b", GOOD_KERNEL, "vllm0.19.0-rocm7.11.0") == []
    assert ids(tmp_path / "c", GOOD_KERNEL, "vllm0.19.0-rocm7.13.0") == ["rocm-kernel-pair"]
    found = read_facts(strix_halo(tmp_path / "d").host)
    assert "newer than AMD's table" in decide(found, Wishes()).reasons[-1]


def test_other_gpus_and_the_dkms_driver_have_no_table(tmp_path: Path) -> None:
    card = decide(read_facts(radeon(tmp_path).host), Wishes(release="vllm0.19.0-rocm7.10.0"))
    assert card.pair is None
    tree = strix_halo(tmp_path / "b", "6.18.20-061820-generic", GOOD_SIZES, "dkms").dkms_packages()
    found = read_facts(tree.dkms(built=["6.18.20-061820-generic"]).host)
    assert decide(found, Wishes(policy="dkms", release="vllm0.19.0-rocm7.10.0")).pair is None
