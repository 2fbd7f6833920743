# SPDX-License-Identifier: Apache-2.0
"""The proof after a boot: numbers of the loaded driver, not the presence of files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from activation_box import PAGES, WISH, good
from trees import GOOD_KERNEL, GOOD_SIZES, OLD_KERNEL, OLD_VGPR_SIZES

from lemonade_deploy.domain import memory, proof
from lemonade_deploy.domain.proof import ProofWish


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"sizes": None}, "does not export cwsr_size"),
        ({"sizes": OLD_VGPR_SIZES}, "13942784.*old-vgpr"),
        ({"sizes": (19185664, 12288)}, "wrong"),
        ({"sizes": (19185664 - 4096, 16384)}, "wrong"),
        ({"kernel": OLD_KERNEL}, "kernel 6.14.0-37-generic runs, 7.0.0-31-generic is wanted"),
        ({"origin": "dkms"}, "loaded amdgpu is dkms, in-tree is wanted"),
        ({"pages": 1}, "ttm.pages_limit is 1, 25165824 is wanted"),
    ],
)
def test_presence_is_not_proof(tmp_path: Path, change: dict[str, Any], found: str) -> None:
    box = good(tmp_path, **change)
    problems = proof.problems(box.host, WISH)
    assert len(problems) == 1
    assert re.search(found, problems[0].found)
    assert problems[0].remedy


def test_a_value_above_the_formula_is_fine(tmp_path: Path) -> None:
    assert proof.problems(good(tmp_path, sizes=(19185664 + 4096, 16384)).host, WISH) == []


def test_a_box_without_a_node_or_module_is_not_proven(tmp_path: Path) -> None:
    box = good(tmp_path)
    box.remove("/sys/class/kfd/kfd/topology/nodes/1/properties")
    assert "no KFD node" in proof.problems(box.host, WISH)[0].found
    box.remove("/sys/module/amdgpu/srcversion")
    (tmp_path / "sys/module/amdgpu").rmdir()
    assert "not loaded" in proof.problems(box.host, WISH)[0].found


def test_a_rival_is_named_where_the_limit_is_not_in_effect(tmp_path: Path) -> None:
    box = good(tmp_path, pages=99).file("/etc/modprobe.d/zz.conf", "options ttm pages_limit=99\n")
    assert "/etc/modprobe.d/zz.conf sets ttm.pages_limit=99" in proof.problems(box.host, WISH)[0].found


def test_under_dkms_the_limit_is_amdttms(tmp_path: Path) -> None:
    box = good(tmp_path, origin="dkms")
    wish = ProofWish("dkms", GOOD_KERNEL, PAGES)
    assert "amdttm.pages_limit is not there" in proof.problems(box.host, wish)[0].found
    box.file(f"/sys/module/{memory.ttm_module('dkms')}/parameters/pages_limit", str(PAGES))
    assert proof.problems(box.host, wish) == []


def test_the_shape_of_a_gpu_is_the_runs_json(tmp_path: Path) -> None:
    (gpu,) = proof.public(proof.read(good(tmp_path).host))
    assert gpu == {
        "node": 1,
        "gfx": "gfx1151",
        "cu_count": 40,
        "driver": "in-tree",
        "cwsr_size": 19185664,
        "ctl_stack_size": 16384,
        "expected_cwsr_size": 19185664,
        "expected_ctl_stack_size": 16384,
        "cwsr": "ok",
    }


def test_a_driver_that_still_sets_up_is_waited_for_and_a_wrong_kernel_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = good(tmp_path, sizes=None)
    slept: list[float] = []

    def later(seconds: float) -> None:
        slept.append(seconds)
        box.kfd_gpu(1, 110501, 0x1586, 80, GOOD_SIZES)

    monkeypatch.setattr(proof.time, "sleep", later)
    assert proof.settle(box.host, WISH, 60) == []
    assert len(slept) == 1
    box.kernel(OLD_KERNEL)
    assert proof.settle(box.host, WISH, 60)
    assert len(slept) == 1
    box.kernel(GOOD_KERNEL)  # a limit that the module was not loaded with never comes by itself
    assert [problem.kernel for problem in proof.settle(box.host, replace(WISH, pages=4711), 60)] == [False]
    assert len(slept) == 1
