# SPDX-License-Identifier: Apache-2.0
"""Debian: backports as a source of the kit's own, and the kernel that sees half of the memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from driver_box import Box
from kernel_sources import BUILD, DEB, PrivateApt
from test_kernels import TRIXIE
from trees import GOOD_SIZES, OLD_KERNEL, Tree, dirty, strix_halo

from lemonade_deploy.domain import (
    backports,
    grub,
    initramfs,
    kernel_plan,
    kernel_search,
    kernels,
    preflight,
    trial_menu,
)
from lemonade_deploy.domain.change import apply_all
from lemonade_deploy.domain.decision import Wishes, decide, needs_kernel
from lemonade_deploy.domain.facts import read_facts
from lemonade_deploy.domain.kernel_choice import (
    AptSource,
    KernelCandidate,
    Mainline,
    Question,
    choose,
)
from lemonade_deploy.domain.kernel_plan import KernelState, KernelWish
from lemonade_deploy.domain.kernels import Forecast

DEBIAN = {
    "linux-image-amd64": "linux-image-6.12.107+deb13-amd64 (= 6.12.107-1)",
    "linux-image-6.12.107+deb13-amd64": "",
}
BACKPORTED = {**DEBIAN, "linux-image-7.1.8+deb13-amd64": ""}
SOURCES = """\
Types: deb
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def debian(root: Path, kernel: str = "6.12.43+deb13-amd64", sizes: tuple[int, int] | None = None) -> Tree:
    tree = strix_halo(root, kernel, sizes).distribution("debian", "13", "trixie")
    tree.file("/usr/share/keyrings/debian-archive-keyring.gpg", "x")
    return tree.file("/etc/apt/sources.list.d/debian.sources", SOURCES)


def look_for(tree: Tree, source: str = "auto", version: str = "") -> KernelCandidate:
    question = Question(TRIXIE, ("gfx1151",), source, version)
    found, _problems = kernel_search.search(tree.host, question, Mainline(), secure_boot=False)
    chosen = choose(found, "", accept_unproven=True)
    assert chosen is not None
    return chosen


def test_backports_are_planned_as_a_source_of_ours(tmp_path: Path, apt: type[PrivateApt]) -> None:
    apt.packages = BACKPORTED
    chosen = look_for(debian(tmp_path))
    assert (chosen.release, chosen.source, chosen.target) == (
        "7.1.8+deb13-amd64",
        "backports",
        "trixie-backports",
    )
    assert chosen.packages == ("linux-image-7.1.8+deb13-amd64",)
    source = chosen.apt_source
    assert source is not None and apt.planned == {source.path: source.content}
    assert source.path == "/etc/apt/sources.list.d/lemonade-deploy-backports.sources"
    fields = dict(line.split(": ") for line in source.content.splitlines() if not line.startswith("#"))
    assert fields == {
        "Types": "deb",
        "URIs": "http://mirror.example/debian",
        "Suites": "trixie-backports",
        "Components": "main",
        "Signed-By": "/usr/share/keyrings/debian-archive-keyring.gpg",
    }


@pytest.mark.parametrize("suite", ["trixie-backports", "stable-backports"])
def test_backports_that_are_configured_are_used_as_they_are(
    tmp_path: Path, apt: type[PrivateApt], suite: str
) -> None:
    apt.packages = BACKPORTED
    tree = debian(tmp_path).file("/etc/apt/sources.list", f"deb http://x/debian {suite} main\n")
    chosen = look_for(tree, "backports")
    assert (chosen.target, chosen.apt_source, apt.planned) == (suite, None, None)
    # A disabled line is none.
    tree.file("/etc/apt/sources.list", f"# deb http://x/debian {suite} main\n")
    assert look_for(tree).apt_source is not None


def test_without_an_archive_of_its_own_the_public_one_is_named(tmp_path: Path) -> None:
    target, source = backports.plan(
        debian(tmp_path).remove("/etc/apt/sources.list.d/debian.sources").host, TRIXIE, "auto"
    )
    assert target == "trixie-backports" and source is not None
    assert "URIs: https://deb.debian.org/debian\n" in source.content
    assert "Components: main non-free-firmware\n" in source.content


def test_debians_own_kernel_is_the_last_resort_and_what_distro_names(
    tmp_path: Path, apt: type[PrivateApt]
) -> None:
    apt.packages = DEBIAN
    chosen = look_for(debian(tmp_path))
    assert (chosen.release, chosen.target, chosen.apt_source) == ("6.12.107+deb13-amd64", "", None)
    apt.packages = BACKPORTED
    assert look_for(debian(tmp_path), "distro").packages == ("linux-image-amd64",)
    assert look_for(debian(tmp_path), version="6.12.107").apt_source is None
    assert look_for(debian(tmp_path), version="7.1.8").target == "trixie-backports"


def test_the_decision_carries_the_source(tmp_path: Path) -> None:
    source = AptSource("/etc/apt/sources.list.d/x.sources", "Types: deb\n")
    candidate = KernelCandidate(
        "7.1.8+deb13-amd64",
        ("linux-image-7.1.8+deb13-amd64",),
        "backports",
        Forecast("fixed", "x"),
        (),
        "trixie-backports",
        source,
    )
    kernel = decide(read_facts(debian(tmp_path).host), Wishes(), [candidate]).public()["kernel"]
    assert (kernel["source"], kernel["target"]) == ("backports", "trixie-backports")
    assert kernel["apt_source"] == {"path": source.path, "content": source.content}


def test_a_mainline_build_is_decided_with_its_packages(tmp_path: Path) -> None:
    decided = decide(read_facts(dirty(tmp_path).host), Wishes(), [BUILD])
    assert decided.public()["kernel"]["debs"] == [DEB._asdict()]
    assert decided.kernel.source == "mainline" and "from mainline" in decided.reasons[1]


def findings(tree: Tree, wishes: Wishes, candidates: Sequence[KernelCandidate] = ()) -> list[str]:
    report = preflight.look(
        tree.host, read_facts(tree.host), wishes, lambda *_: (list(candidates), ["mainline: away"]), 20
    )
    return preflight.ids(report.findings)


RELEASE = "vllm0.22.0-rocm7.11.0"


def test_half_of_the_memory_is_told_and_backports_by_name_mend_it(tmp_path: Path) -> None:
    tree = debian(tmp_path, "6.12.107+deb13-amd64", GOOD_SIZES)
    found = read_facts(tree.host)
    assert not needs_kernel(found, Wishes()) and needs_kernel(found, Wishes(kernel_source="backports"))
    # AMD's table counts it among the old kernels as well.
    assert findings(tree, Wishes(release=RELEASE)) == ["kernel-half-memory", "rocm-kernel-pair"]
    candidate = BUILD._replace(release="7.1.8+deb13-amd64", source="backports", debs=())
    wishes = Wishes(kernel_source="backports", release=RELEASE)
    assert decide(found, wishes, [candidate]).kernel.action == "install"
    assert findings(tree, wishes, [candidate]) == []
    # Nothing there: the box works, so it is kept and told.
    assert "kernel-half-memory" in findings(tree, wishes)
    for kernel in ("7.1.8+deb13-amd64", "6.12.90-061290-generic"):
        assert not kernels.halves_memory(kernels.parse(kernel))


def test_an_unproven_kernel_is_taken_in_need_with_a_warning(tmp_path: Path) -> None:
    oem = BUILD._replace(release="6.17.0-1033-oem", source="oem", debs=(), forecast=Forecast("unproven", "x"))
    tree = strix_halo(tmp_path, OLD_KERNEL, None)
    assert "kernel-unproven" in findings(tree, Wishes(release=RELEASE), [oem])
    decided = decide(read_facts(tree.host), Wishes(release=RELEASE), [oem], ["mainline: away"])
    assert "nothing proven was to be had (mainline: away)" in decided.reasons[1]
    assert "kernel-unproven" not in findings(tree, Wishes(release=RELEASE), [oem, BUILD])


def test_a_pin_by_upstreams_number_is_met_by_what_runs(tmp_path: Path) -> None:
    found = read_facts(strix_halo(tmp_path, "6.18.20-061820-generic").host)
    assert not needs_kernel(found, Wishes(kernel_version="6.18.20"))
    assert needs_kernel(found, Wishes(kernel_version="6.18.21"))


def test_the_kernel_layer_adds_the_source_and_asks_for_the_target(tmp_path: Path) -> None:
    old, new = "6.12.43+deb13-amd64", "7.1.8+deb13-amd64"
    made = Box(tmp_path)
    made.kernel(old)
    made.kernels(old)

    def install(_argv: Sequence[str], _env: Mapping[str, str]) -> None:
        assert source.path in made.root.joinpath("seen").read_text()
        made.file(f"/boot/vmlinuz-{new}").module(new, "in-tree")
        made.write_menu()

    def update(argv: Sequence[str], _env: Mapping[str, str]) -> None:
        there = made.host.read(source.path) or ""
        made.file("/seen", f"{source.path}: {there}" if there == source.content else "")

    source = AptSource("/etc/apt/sources.list.d/lemonade-deploy-backports.sources", "Types: deb\n")
    made.on("apt-get", "update", do=update)
    made.on("apt-get", "install", do=install)
    wish = KernelWish(new, (f"linux-image-{new}",), target="trixie-backports", apt_source=source)
    plan = kernel_plan.plan(kernel_state(made, wish), wish)
    assert [(change.object, change.action) for change in plan][:3] == [
        ("grub default", "pin"),
        ("backports source", "add"),
        ("kernel", "install"),
    ]
    apply_all(plan, made.host)
    (argv,) = [argv for argv in made.ran("apt-get") if "install" in argv]
    assert list(argv[argv.index("install") :]) == ["install", "-t", "trixie-backports", f"linux-image-{new}"]
    after = [change.object for change in kernel_plan.plan(kernel_state(made, wish), wish)]
    assert "backports source" not in after and "kernel" not in after


def kernel_state(made: Box, wish: KernelWish) -> KernelState:
    """As the module kernel reads it."""
    return KernelState(
        made.host.running_kernel(),
        wish.release in initramfs.installed_kernels(made.host),
        grub.read(made.host),
        source=made.host.read(wish.apt_source.path) if wish.apt_source else None,
        entries=trial_menu.read(made.host),
    )
