# SPDX-License-Identifier: Apache-2.0
"""From a box's state and what is wished to the one decision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from trees import (
    DKMS_VERSION,
    GOOD_KERNEL,
    GOOD_SIZES,
    OLD_KERNEL,
    Tree,
    bare,
    built_in,
    dark,
    dirty,
    foreign,
    radeon,
    strix_halo,
)

from lemonade_deploy.domain import decision, releases, states
from lemonade_deploy.domain.decision import Wishes, decide
from lemonade_deploy.domain.facts import Facts, read_facts
from lemonade_deploy.domain.kernel_choice import KernelCandidate
from lemonade_deploy.domain.kernels import Forecast
from lemonade_deploy.domain.module import Refused

HWE = KernelCandidate(GOOD_KERNEL, ("linux-generic-hwe-24.04",), "hwe", Forecast("fixed", "x"))
OEM = KernelCandidate("6.17.0-1033-oem", ("linux-oem-24.04d",), "oem", Forecast("unproven", "x"))
FOR_DKMS = KernelCandidate(
    "6.18.20-061820-generic", ("linux-image-6.18.20-061820-generic",), "archive", Forecast("fixed", "x")
)


def facts(tree: Tree) -> Facts:
    return read_facts(tree.host)


def test_dirty_box_goes_in_tree_with_a_new_kernel(tmp_path: Path) -> None:
    found = facts(dirty(tmp_path))
    assert decision.needs_kernel(found, Wishes())
    decided = decide(found, Wishes(), [HWE, OEM]).public()
    assert decided["driver"] == {"policy": "intree", "origin": "in-tree", "state": "dkms-masking"}
    assert decided["repository"] is None
    assert decided["kernel"] == {
        "action": "install",
        "release": GOOD_KERNEL,
        "packages": ["linux-generic-hwe-24.04"],
        "running": OLD_KERNEL,
        "verdict": "fixed",
        "source": "hwe",
        "debs": [],
        "target": "",
        "apt_source": None,
    }
    base = releases.DEFAULT_BASE
    assert decided["release"] == {"base": base, "family": "gfx1151", "tag": f"{base}-gfx1151"}
    assert decided["gtt"] == {"pages": (128 - 13) * 262144}
    assert len(decided["reasons"]) == 4


def test_dirty_box_under_dkms(tmp_path: Path) -> None:
    found = facts(dirty(tmp_path))
    wishes = Wishes(policy="dkms")
    decided = decide(found, wishes, [FOR_DKMS]).public()
    assert decided["driver"]["origin"] == "dkms"
    assert decided["repository"] == {"version": "31.20", "exact": False}
    assert decided["kernel"]["release"] == "6.18.20-061820-generic"
    assert decision.kernel_question(found, wishes).dkms is not None


@pytest.mark.parametrize(
    ("source", "newest"), [("31.40", (7, 0)), ("latest", (7, 0)), ("30.30", (6, 19)), ("31.20", (6, 19))]
)
def test_a_later_repository_decides_which_kernels_fit(
    tmp_path: Path, source: str, newest: tuple[int, int]
) -> None:
    found = facts(strix_halo(tmp_path).amd_source(source))
    question = decision.kernel_question(found, Wishes(policy="dkms"))
    assert question.dkms is not None and question.dkms.newest_kernel == newest


def test_converged_box_asks_nobody(tmp_path: Path) -> None:
    found = facts(strix_halo(tmp_path))
    assert not decision.needs_kernel(found, Wishes())
    kernel = decide(found, Wishes()).kernel
    assert (kernel.action, kernel.release, kernel.packages, kernel.verdict) == (
        "keep",
        GOOD_KERNEL,
        (),
        "fixed",
    )


def test_proof_outranks_the_table(tmp_path: Path) -> None:
    found = facts(strix_halo(tmp_path, "6.17.0-1033-oem", GOOD_SIZES))
    assert not decision.needs_kernel(found, Wishes())
    assert decide(found, Wishes()).kernel.verdict == "fixed"


def test_a_driver_that_is_to_go_proves_nothing_about_the_kernel(tmp_path: Path) -> None:
    found = facts(
        strix_halo(tmp_path, OLD_KERNEL, GOOD_SIZES, "dkms").dkms_packages().dkms(built=[OLD_KERNEL])
    )
    assert decision.needs_kernel(found, Wishes(policy="intree"))


def test_a_module_that_waits_for_a_boot_proves_nothing(tmp_path: Path) -> None:
    tree = strix_halo(tmp_path)
    tree.file("/sys/module/amdgpu/srcversion", "OTHER\n")
    tree.kfd_gpu(1, 110501, 0x1586, 80, None)
    found = facts(tree)
    assert found.module_changed
    assert states.classify(found) == states.IN_TREE_OLD
    assert decide(found, Wishes()).kernel.action == "keep"


def test_masking_dkms_on_a_good_kernel_needs_no_kernel(tmp_path: Path) -> None:
    found = facts(strix_halo(tmp_path, GOOD_KERNEL, None, "dkms").dkms_packages().dkms(built=[GOOD_KERNEL]))
    assert not decision.needs_kernel(found, Wishes())
    assert decide(found, Wishes()).driver == decision.Driver("intree", "in-tree", "dkms-masking")


def test_dark_box_keeps_a_kernel_that_is_fixed(tmp_path: Path) -> None:
    decided = decide(facts(dark(tmp_path)), Wishes())
    assert (decided.driver.state, decided.driver.policy, decided.kernel.action) == ("dark", "intree", "keep")


def test_a_kernel_without_its_module_gets_it(tmp_path: Path) -> None:
    found = facts(bare(tmp_path).pci(0x1586))
    assert decision.needs_kernel(found, Wishes())
    assert decide(found, Wishes(), [HWE]).kernel.action == "install"


def test_derivatives_use_ubuntus_numbers(tmp_path: Path) -> None:
    text = 'ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="22"\nUBUNTU_CODENAME=noble\n'
    distribution = facts(strix_halo(tmp_path).file("/etc/os-release", text)).distribution
    assert (distribution.version, distribution.ubuntu, distribution.apt) == ("24.04", True, True)


def test_unproven_is_taken_only_in_need(tmp_path: Path) -> None:
    bad = facts(dirty(tmp_path))
    assert decide(bad, Wishes(), [OEM]).kernel.release == "6.17.0-1033-oem"
    unproven = facts(strix_halo(tmp_path / "b", "6.17.0-22-generic", None, "dkms").dkms_packages())
    assert decide(unproven, Wishes(), [OEM]).kernel.action == "keep"
    assert decide(unproven, Wishes(), [OEM, HWE]).kernel.release == GOOD_KERNEL


def test_without_any_kernel_it_refuses_and_says_what_apt_said(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        decide(facts(dirty(tmp_path)), Wishes(), [], ["E: no network"])
    assert OLD_KERNEL in refused.value.found and "E: no network" in refused.value.found
    assert refused.value.remedy


def test_secure_boot_is_named_where_it_leaves_kernels_out(tmp_path: Path) -> None:
    found = facts(strix_halo(tmp_path, OLD_KERNEL, None).secure_boot())
    assert decision.kernel_question(found, Wishes()).signed
    with pytest.raises(Refused, match="Secure Boot is on"):
        decide(found, Wishes(), [])


def test_keep_keeps_even_a_bad_kernel(tmp_path: Path) -> None:
    found = facts(dirty(tmp_path))
    wishes = Wishes(kernel_source="keep")
    assert not decision.needs_kernel(found, wishes)
    kernel = decide(found, wishes).kernel
    assert (kernel.action, kernel.verdict) == ("keep", "bad")


def test_a_pinned_kernel(tmp_path: Path) -> None:
    found = facts(strix_halo(tmp_path))
    wishes = Wishes(kernel_version="6.18.20-061820-generic")
    assert decision.needs_kernel(found, wishes)
    assert decide(found, wishes, [FOR_DKMS]).kernel.action == "install"
    with pytest.raises(Refused, match=r"6\.18\.20-061820-generic"):
        decide(found, wishes, [])
    assert not decision.needs_kernel(found, Wishes(kernel_version=GOOD_KERNEL))


def test_a_box_with_a_working_card_keeps_dkms(tmp_path: Path) -> None:
    tree = radeon(tmp_path, OLD_KERNEL, "dkms").dkms_packages().dkms(built=[OLD_KERNEL]).amd_source("30.30")
    decided = decide(facts(tree), Wishes())
    assert decided.driver == decision.Driver("dkms", "dkms", "dkms-good")
    assert decided.repository == decision.Repository("30.30", False)
    assert decided.kernel.action == "keep"
    assert decided.gtt_pages is None
    assert decided.release.family == "gfx110X"
    assert "published, never exercised" in decided.reasons[2]


def test_a_card_beside_a_strix_point_goes_in_tree(tmp_path: Path) -> None:
    tree = radeon(tmp_path).pci(0x150E, "0000:c4:00.0").kfd_gpu(2, 110500, 0x150E, 32, None)
    decided = decide(facts(tree), Wishes())
    assert (decided.driver.policy, decided.release.family, decided.gtt_pages) == ("intree", "gfx110X", None)


def of_another_package(root: Path) -> Tree:
    tree = strix_halo(root, origin="dkms").dkms(built=[GOOD_KERNEL]).dkms_packages()
    return tree.file(f"/var/lib/dkms/othergpu/1.0/{GOOD_KERNEL}/x86_64/module/amdgpu.ko.zst")


def of_a_guest(root: Path) -> Tree:
    tree = bare(root).pci(0x1586, kind=0x038000).module(GOOD_KERNEL, "in-tree")
    return tree.link("/sys/bus/pci/devices/0000:c5:00.0/driver", "../../../bus/pci/drivers/vfio-pci")


@pytest.mark.parametrize("build", [foreign, built_in, of_another_package, of_a_guest])
def test_unknown_is_never_touched(tmp_path: Path, build: Callable[[Path], Tree]) -> None:
    found = facts(build(tmp_path))
    assert not decision.needs_kernel(found, Wishes())
    with pytest.raises(Refused, match="does not know"):
        decide(found, Wishes(), [HWE])


def test_no_gpu_names_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="No AMD GPU"):
        decide(facts(bare(tmp_path)), Wishes())
    with pytest.raises(Refused, match=r"Navi 21 \(gfx1030\) at 0000:c5:00.0"):
        decide(facts(bare(tmp_path / "b").pci(0x73BF)), Wishes())


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (Wishes(release="latest"), "no vllm-rocm release"),
        (Wishes(release=f"{releases.DEFAULT_BASE}-gfx120X"), "is for gfx120X"),
        (Wishes(repository_version="newest"), "no repository version"),
        (Wishes(gtt_gib="lots"), "neither auto nor a number"),
        (Wishes(gtt_gib="128"), "leave the system no memory"),
    ],
)
def test_wishes_that_cannot_be_met(tmp_path: Path, wishes: Wishes, message: str) -> None:
    with pytest.raises(Refused, match=message):
        decide(facts(strix_halo(tmp_path)), wishes)


def test_release_names(tmp_path: Path) -> None:
    found = facts(strix_halo(tmp_path))
    assert (
        decide(found, Wishes(release="vllm0.22.1-rocm7.13.0-gfx1151")).release.tag
        == "vllm0.22.1-rocm7.13.0-gfx1151"
    )
    assert "known trouble" in decide(found, Wishes(release="vllm0.22.1-rocm7.13.0")).reasons[2]
    assert decide(found, Wishes(gtt_gib="96")).gtt_pages == 25165824


def test_a_distribution_without_apt_is_told_its_own_command(tmp_path: Path) -> None:
    tree = strix_halo(tmp_path, "6.17.4-200.fc43.x86_64", None).distribution("fedora", "43", "")
    with pytest.raises(Refused) as refused:
        decide(facts(tree), Wishes())
    assert "dnf upgrade" in refused.value.remedy
    good = strix_halo(tmp_path / "b", "6.18.9-200.fc43.x86_64").distribution("fedora", "43", "")
    assert decide(facts(good), Wishes()).kernel.action == "keep"


def test_the_kits_gtt_value_stays_where_memory_differs_a_little(tmp_path: Path) -> None:
    found = facts(strix_halo(tmp_path))
    near = found._replace(gtt_pages=114 * 262144)
    assert decide(near, Wishes()).gtt_pages == 114 * 262144


def test_reading_facts_changes_nothing(tmp_path: Path) -> None:
    tree = dirty(tmp_path)
    before = tree.snapshot()
    decide(facts(tree), Wishes(), [HWE])
    assert tree.snapshot() == before
    assert tree.commands == [("modinfo", "-k", OLD_KERNEL, "-F", "srcversion", "amdgpu")]
    assert DKMS_VERSION in str(facts(tree).public()["dkms"])
