# SPDX-License-Identifier: Apache-2.0
"""From what a box shows to the one name of its driver's state; the documentation names each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from trees import (
    GOOD_KERNEL,
    GOOD_SIZES,
    OLD_KERNEL,
    OLD_VGPR_SIZES,
    Tree,
    bare,
    built_in,
    dark,
    dirty,
    foreign,
    radeon,
    strix_halo,
)

from lemonade_deploy.domain import states
from lemonade_deploy.domain.facts import read_facts


def inactive(root: Path) -> Tree:
    """The kernel is good and loaded; 6.19.0 is installed and not active."""
    tree = strix_halo(root).dkms("6.19.0-2300000.24.04")
    return tree.dpkg({"amdgpu-dkms": ("1:6.19.0.31200000-2300000.24.04", "install ok installed")})


def stale(root: Path) -> Tree:
    return strix_halo(root).dkms_packages().dkms(source=False)


def orphaned(root: Path) -> Tree:
    return strix_halo(root).dkms(built=[GOOD_KERNEL])


def failed(root: Path) -> Tree:
    return strix_halo(root).dkms_packages().dkms(failed="7.0.0-32-generic")


def half(root: Path) -> Tree:
    return strix_halo(root).dkms_packages("install ok half-configured")


STATES: list[tuple[str, Callable[[Path], Tree]]] = [
    (states.NO_GPU, bare),
    (states.NO_GPU, lambda root: bare(root).pci(0x73BF)),
    (states.IN_TREE_GOOD, strix_halo),
    (states.IN_TREE_OLD, lambda root: strix_halo(root, OLD_KERNEL, None)),
    (states.IN_TREE_OLD, lambda root: strix_halo(root, "6.17.0-22-generic", OLD_VGPR_SIZES)),
    (states.DARK, dark),
    (states.DARK, lambda root: bare(root).pci(0x1586)),
    (states.DKMS_MASKING, dirty),
    (states.DKMS_MASKING, lambda root: strix_halo(root, GOOD_KERNEL, None, "dkms").dkms_packages()),
    (states.DKMS_GOOD, lambda root: strix_halo(root, "6.18.20-061820-generic", GOOD_SIZES, "dkms")),
    (states.DKMS_INACTIVE, inactive),
    (states.BROKEN_BUILD, failed),
    (states.DPKG, half),
    (states.STALE_TREE, stale),
    (states.STALE_TREE, orphaned),
    (states.UNKNOWN, foreign),
    (states.UNKNOWN, built_in),
    # A kernel that should have the fix and shows other numbers.
    (states.UNKNOWN, lambda root: strix_halo(root, GOOD_KERNEL, (19185665, 16384))),
    (states.IN_TREE_GOOD, radeon),
    (
        states.DKMS_GOOD,
        lambda root: radeon(root, OLD_KERNEL, "dkms").dkms_packages().dkms(built=[OLD_KERNEL]),
    ),
]


@pytest.mark.parametrize(("state", "build"), STATES)
def test_states(tmp_path: Path, state: str, build: Callable[[Path], Tree]) -> None:
    assert states.classify(read_facts(build(tmp_path).host)) == state


def test_documentation_names_every_state() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "decision.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)
    assert sorted(documented) == sorted({state for state, _build in STATES})
