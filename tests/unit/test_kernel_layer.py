# SPDX-License-Identifier: Apache-2.0
"""The kernel layer: a pinned default, an installation, one boot; and one initramfs rebuild."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from driver_box import Box

from lemonade_deploy.domain import grub, initramfs, kernel_hold, kernel_plan, paths, trial_menu
from lemonade_deploy.domain.change import Change, apply_all
from lemonade_deploy.domain.host import Completed
from lemonade_deploy.domain.kernel_plan import KernelState, KernelWish
from lemonade_deploy.domain.module import Refused

OLD, NEW = "6.14.0-37-generic", "7.0.0-31-generic"
WISH = KernelWish(NEW, ("linux-generic-hwe-24.04",))


def names(changes: Sequence[Change]) -> list[tuple[str, str]]:
    return [(change.object, change.action) for change in changes]


def read(box: Box, wish: KernelWish = WISH) -> KernelState:
    return KernelState(
        box.host.running_kernel(),
        wish.release in initramfs.installed_kernels(box.host),
        grub.read(box.host),
        entries=trial_menu.read(box.host),
        held=kernel_hold.read(box.host),
    )


def old_box(tmp_path: Path) -> Box:
    """An old kernel runs; apt can install the new one, whose packages regenerate the menu."""
    box = Box(tmp_path)
    box.kernel(OLD)
    box.kernels(OLD)

    def install(_argv: Sequence[str], _env: Mapping[str, str]) -> None:
        box.file(f"/boot/vmlinuz-{NEW}").module(NEW, "in-tree")
        box.write_menu()

    box.on("apt-get", "install", do=install)
    box.on("apt-get", "-s", "install", stdout=f"Inst linux-image-{NEW} (1 x [amd64])\n")
    return box


def order_of(box: Box) -> list[str]:
    """What was done, by program, in order."""
    known = ("grub-mkconfig", "grub-set-default", "apt-get", "grub-reboot")
    return [argv[0] for argv in box.commands if argv[0] in known and "update" not in argv]


def test_the_default_is_pinned_before_the_packages_and_the_one_shot_is_not_set_yet(tmp_path: Path) -> None:
    box = old_box(tmp_path)
    state = read(box)
    changes = kernel_plan.plan(state, WISH)
    assert names(changes) == [("grub default", "pin"), ("kernel", "install"), ("kernel hold", "set")]
    apply_all(changes, box.host)
    assert order_of(box) == ["grub-mkconfig", "grub-set-default", "apt-get"]
    after = grub.read(box.host)
    assert after is not None
    assert (after.default_release(), after.next_release(), after.follows_saved) == (OLD, "", True)
    assert ("apt-mark", "manual", "linux-generic-hwe-24.04") in box.commands
    assert kernel_plan.plan(read(box), WISH) == []
    marker = json.loads(str(box.text(paths.ACTIVATION_DUE)))
    assert (marker["kernel"], marker["initramfs"]) == (NEW, True)


def test_a_kernel_that_is_installed_but_does_not_run_is_only_pinned_against(tmp_path: Path) -> None:
    box = old_box(tmp_path)
    box.kernels(OLD, NEW).module(NEW, "in-tree")
    state = read(box)
    changes = kernel_plan.plan(state, WISH)
    assert names(changes) == [("grub default", "pin"), ("kernel hold", "set")]
    due = kernel_plan.due(state, WISH)
    assert (due.initramfs, due.kernel) == (False, NEW)
    apply_all(changes, box.host)
    assert kernel_plan.plan(read(box), WISH) == []
    assert not box.ran("apt-get")


def test_the_running_kernel_needs_nothing(tmp_path: Path) -> None:
    box = old_box(tmp_path)
    wish = KernelWish(OLD, ())
    assert kernel_plan.plan(read(box, wish), wish) == []
    assert not kernel_plan.due(read(box, wish), wish)


def test_a_default_that_is_the_running_kernel_by_chance_is_still_pinned(tmp_path: Path) -> None:
    """GRUB_DEFAULT=0 is the running kernel until the new one is unpacked."""
    box = old_box(tmp_path)
    state = read(box)
    assert state.grub is not None and state.grub.default_release() == OLD
    assert ("grub default", "pin") in names(kernel_plan.plan(state, WISH))


@pytest.mark.parametrize("broken", ["no grub", "running kernel not in the menu"])
def test_where_nothing_could_fall_back_nothing_is_begun(tmp_path: Path, broken: str) -> None:
    box = old_box(tmp_path)
    if broken == "no grub":
        box.remove("/boot/grub/grub.cfg")
    else:
        box.kernel("6.8.0-1-generic")
    with pytest.raises(Refused) as refusal:
        kernel_plan.plan(read(box), WISH)
    assert refusal.value.remedy


def test_modules_extra_come_where_no_meta_brings_the_driver(tmp_path: Path) -> None:
    box = old_box(tmp_path)
    extra = f"linux-modules-extra-{NEW}"
    box.on("apt-cache", "show", extra, stdout=f"Package: {extra}\nVersion: 1\n")

    def install(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
        box.kernels(OLD, NEW)
        if extra in argv:
            box.module(NEW, "in-tree")
        return Completed(tuple(argv), 0, "", "")

    box.on("apt-get", "install", do=install)
    kernel_plan.install(box.host, WISH, read(box))
    assert [argv[-1] for argv in box.ran("apt-get") if "install" in argv] == [
        "linux-generic-hwe-24.04",
        extra,
    ]


def test_packages_that_bring_another_kernel_are_an_error(tmp_path: Path) -> None:
    box = old_box(tmp_path).on("apt-get", "install").on("apt-get", "update", rc=100, stderr="E: no network")
    with pytest.raises(Refused, match=r"did not bring kernel 7\.0.*no network"):
        kernel_plan.install(box.host, WISH, read(box))


def test_an_installation_that_removes_something_is_refused(tmp_path: Path) -> None:
    box = old_box(tmp_path)
    box.on("apt-cache", "show", stdout="Package: linux-generic-hwe-24.04\nVersion: 1\n")
    kernel_plan.simulate(box.host, WISH, ())
    box.on("apt-get", "-s", "install", stdout="Remv zfs-dkms [2]\n")
    with pytest.raises(Refused, match="would remove zfs-dkms"):
        kernel_plan.simulate(box.host, WISH, ())


def test_packages_that_apt_does_not_have_are_named_with_apts_reason(tmp_path: Path) -> None:
    box = old_box(tmp_path).on("apt-get", "update", rc=100, stderr="E: Failed to fetch http://archive/x")
    with pytest.raises(Refused, match=r"linux-generic-hwe-24\.04: E: Failed to fetch"):
        kernel_plan.simulate(box.host, WISH, ())


def test_under_dkms_headers_belong_to_an_installed_kernel(tmp_path: Path) -> None:
    box = old_box(tmp_path)
    box.kernels(OLD, NEW)
    dkms = KernelWish(NEW, (), dkms=True)
    assert kernel_plan.missing_packages(box.host, WISH, []) == ()
    assert kernel_plan.missing_packages(box.host, dkms, []) == (f"linux-headers-{NEW}",)
    assert kernel_plan.missing_packages(box.host, dkms, [f"linux-headers-{NEW}"]) == ()


# -- initramfs -------------------------------------------------------------------------------------


def rebuilding(box: Box) -> None:
    def update(argv: Sequence[str], _env: Mapping[str, str]) -> None:
        box.host.write(f"/boot/initrd.img-{argv[-1]}", "rebuilt")

    box.on("update-initramfs", do=update)


def test_every_kernel_is_rebuilt_once_and_a_new_initrd_reaches_the_menu(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.kernels(OLD, NEW).remove(f"/boot/initrd.img-{NEW}")
    box.file("/boot/vmlinuz-6.1.0-gone")  # no modules: not installed
    rebuilding(box)
    initramfs.rebuild(box.host)
    assert sorted(argv[1:] for argv in box.ran("update-initramfs")) == [("-c", "-k", NEW), ("-u", "-k", OLD)]
    assert len(box.ran("grub-mkconfig")) == 1


def test_without_a_missing_initrd_the_menu_stays(tmp_path: Path) -> None:
    box = Box(tmp_path).kernels(OLD, NEW)
    rebuilding(box)
    initramfs.rebuild(box.host)
    assert not box.ran("grub-mkconfig")


def test_an_initramfs_that_was_not_written_is_noticed(tmp_path: Path) -> None:
    box = Box(tmp_path).kernels(OLD)
    with pytest.raises(initramfs.NotWritten, match=OLD):
        initramfs.rebuild(box.host)


@pytest.mark.parametrize(
    ("arguments", "held"),
    [
        (["-u", "-k", "all"], True),
        (["-c", "-k", NEW, "-b", "/boot"], True),
        (["-uv"], True),
        (["-k", NEW, "-u"], True),
        (["-d", "-k", NEW], False),
        (["--version"], False),
    ],
)
def test_the_stand_in_holds_back_builds_only(tmp_path: Path, arguments: list[str], held: bool) -> None:
    box = Box(tmp_path).file("/usr/sbin/update-initramfs", "#!/bin/sh\n")
    with initramfs.held(box.host) as path:
        stand_in = tmp_path / paths.HOLD_DIR.lstrip("/") / "update-initramfs"
        assert path.split(":")[0] == paths.HOLD_DIR
        assert stat.S_IMODE(os.stat(stand_in).st_mode) == 0o755
        script = stand_in.read_text().replace("exec /usr/sbin/update-initramfs", "exec echo real")
        done = subprocess.run(
            ["sh", "-c", script, "x", *arguments], capture_output=True, text=True, check=True
        )
    assert ("held back" in done.stdout, done.stdout.startswith("real")) == (held, not held)
    assert not stand_in.exists()
