# SPDX-License-Identifier: Apache-2.0
"""Distributions without a package backend: a good box passes the driver's and the kernel's layers there."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_box import Box
from trees import GOOD_SIZES, strix_halo

from lemonade_deploy.domain import (
    activate_steps,
    driver_plan,
    driver_state,
    kernel_plan,
    kernels,
    memory,
    memory_plan,
    proof,
)
from lemonade_deploy.domain.decision import Wishes, decide
from lemonade_deploy.domain.facts import read_facts
from lemonade_deploy.domain.kernel_plan import KernelState, KernelWish
from lemonade_deploy.domain.memory_plan import MemoryWish
from lemonade_deploy.domain.module import Refused
from lemonade_deploy.domain.proof import ProofWish

PAGES = (128 - 13) * 262144
BOXES = [
    ("fedora", "", "6.18.9-200.fc43.x86_64"),
    ("arch", "", "6.18.4-arch1-1"),
    ("opensuse-tumbleweed", "opensuse suse", "6.18.5-1-default"),
    ("rhel", "fedora", "6.12.0-124.8.1.el10_1.x86_64"),
]


def box(root: Path, name: str, like: str, kernel: str) -> Box:
    """A Strix Halo box in order, with nothing of apt, dpkg, initramfs-tools or GRUB."""
    made = Box(root)
    made.file("/etc/os-release", f'ID={name}\nID_LIKE="{like}"\nVERSION_ID="43"\n').kernel(kernel).memory()
    made.pci(0x1586, kind=0x038000).cpu_node().kfd_gpu(1, 110501, 0x1586, 80, GOOD_SIZES)
    made.module(kernel, "in-tree").loaded("in-tree", kernel).users()
    made.file("/sys/module/ttm/parameters/pages_limit", f"{PAGES}\n")
    made.on("modinfo", stdout=f"IN-TREE-{kernel}\n")
    # As an earlier run left it.
    made.file("/etc/modprobe.d/lemonade-deploy-gtt.conf", memory.modprobe_file("ttm", PAGES))
    made.file("/etc/udev/rules.d/70-lemonade-deploy-gpu.rules", memory_plan.UDEV_RULES)
    return made


@pytest.mark.parametrize(("name", "like", "kernel"), BOXES)
def test_a_good_box_passes_all_layers_up_to_activate(
    tmp_path: Path, name: str, like: str, kernel: str
) -> None:
    made = box(tmp_path, name, like, kernel)
    decided = decide(read_facts(made.host), Wishes())
    assert (decided.kernel.action, decided.driver.origin) == ("keep", "in-tree")
    state = driver_state.read(made.host)
    assert driver_plan.plan_intree(state) == [] and not driver_plan.intree_due(state)
    assert kernel_plan.plan(KernelState(kernel, True, None), KernelWish("", ())) == []
    wish = MemoryWish(decided.gtt_pages, "ttm", "lemonade")
    memory_state = memory_plan.read(made.host, wish)
    assert memory_plan.plan(memory_state, wish) == [] and not memory_plan.due(memory_state, wish)
    proof_wish = ProofWish("in-tree", kernel, decided.gtt_pages)
    situation = activate_steps.look(made.host, proof_wish, [])
    assert activate_steps.plan(situation) == []
    assert activate_steps.prepare(made.host, situation, proof_wish, 900) == []
    assert proof.problems(made.host, proof_wish) == []
    # No tool of Debian's was run, by its absence nothing could fail.
    assert {argv[0] for argv in made.commands} <= {"modinfo"}


@pytest.mark.parametrize(
    ("name", "like", "command"),
    [
        ("fedora", "", "sudo dnf remove amdgpu-dkms"),
        ("rocky", "rhel centos fedora", "sudo dnf remove amdgpu-dkms"),
        ("arch", "", "sudo pacman -R amdgpu-dkms"),
        ("sles", "suse", "sudo zypper remove amdgpu-dkms"),
        ("void", "", "remove the package amdgpu-dkms"),
    ],
)
def test_a_dkms_driver_there_is_the_owners_to_remove(
    tmp_path: Path, name: str, like: str, command: str
) -> None:
    made = box(tmp_path, name, like, "6.18.9-200.fc43.x86_64")
    made.dkms(built=["6.18.9-200.fc43.x86_64"]).module("6.18.9-200.fc43.x86_64", "dkms")
    made.loaded("dkms", "6.18.9-200.fc43.x86_64")
    with pytest.raises(Refused, match="has no apt that this kit could change its packages with") as caught:
        decide(read_facts(made.host), Wishes())
    assert command in caught.value.remedy and name in caught.value.found
    # Nobody asks for DKMS to be put there either.
    clean = box(tmp_path / "b", name, like, "6.18.9-200.fc43.x86_64")
    with pytest.raises(Refused, match="The dkms driver is wanted"):
        decide(read_facts(clean.host), Wishes(policy="dkms"))


OS = 'ID={}\nID_LIKE="{}"\nVERSION_ID="{}"\n'


@pytest.mark.parametrize(
    ("name", "like", "kernel", "command"),
    [
        ("fedora", "", "6.17.1-300.fc43.x86_64", "sudo dnf upgrade --refresh 'kernel*'"),
        ("nobara", "fedora", "6.17.1-300.fc43.x86_64", "sudo dnf upgrade --refresh 'kernel*'"),
        ("arch", "", "6.18.3-arch1-1", "sudo pacman -Syu linux"),
        ("cachyos", "arch", "6.18.3-2-cachyos", "sudo pacman -Syu linux"),
        ("opensuse-tumbleweed", "opensuse suse", "6.17.5-1-default", "sudo zypper dup"),
        ("opensuse-leap", "suse opensuse", "6.4.0-150600.23-default", "sudo zypper update kernel-default"),
        ("sles", "suse", "6.12.0-160000.5-default", "sudo zypper update kernel-default"),
        ("rhel", "fedora", "6.12.0-55.el10.x86_64", "sudo dnf upgrade 'kernel*'"),
        ("rocky", "rhel centos fedora", "5.14.0-570.el9.x86_64", "sudo dnf upgrade 'kernel*'"),
        ("void", "", "6.12.1_1", "install a kernel of 6.18.4 or later"),
    ],
)
def test_a_bad_kernel_names_the_distributions_own_command(
    tmp_path: Path, name: str, like: str, kernel: str, command: str
) -> None:
    tree = strix_halo(tmp_path, kernel, None).file("/etc/os-release", OS.format(name, like, "1"))
    with pytest.raises(Refused) as caught:
        decide(read_facts(tree.host), Wishes())
    assert command in caught.value.remedy and name in caught.value.found


@pytest.mark.parametrize(
    ("name", "like", "kernel"),
    [
        ("fedora", "", "6.18.9-200.fc43.x86_64"),
        ("arch", "", "6.18.4-arch1-1"),
        ("opensuse-tumbleweed", "suse", "6.18.5-1-default"),
        ("rhel", "fedora", "6.12.0-124.8.1.el10_1.x86_64"),  # its number says little: the GPU's numbers do
    ],
)
def test_a_good_box_passes_without_apt(tmp_path: Path, name: str, like: str, kernel: str) -> None:
    tree = strix_halo(tmp_path, kernel).file("/etc/os-release", OS.format(name, like, "1"))
    decided = decide(read_facts(tree.host), Wishes())
    assert (decided.kernel.action, decided.kernel.verdict) == ("keep", "fixed")


def test_what_is_unproven_there_stays_with_a_warning(tmp_path: Path) -> None:
    kernel = kernels.parse("6.12.0-124.8.1.el10_1.x86_64")
    assert kernel is not None and kernel.flavour == "enterprise"
    assert kernels.forecast(kernel, "gfx1151").verdict == "unproven"
