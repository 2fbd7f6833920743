# SPDX-License-Identifier: Apache-2.0
"""The driver layer: repair, purge that finishes, switch that goes back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from driver_box import Box, dirty, names
from trees import GOOD_KERNEL, OLD_KERNEL, Tree

from lemonade_deploy.domain import (
    driver_plan,
    driver_purge,
    driver_state,
    paths,
)
from lemonade_deploy.domain.change import apply_all
from lemonade_deploy.domain.host import CommandFailed, Completed
from lemonade_deploy.domain.refusal import Refused

OK = "install ok installed"
NEW = "1:6.19.0.31200000-2400000.24.04"
NEW_FIRMWARE = "1:31.20.0.0.31200000-2400000.24.04"
OLD_FIRMWARE_EPOCH = "1:6.12.12.60404-2202139.24.04"


def test_intree_purges_pins_and_says_what_the_boot_must_do(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    state = driver_state.read(box.host)
    changes = driver_plan.plan_intree(state)
    assert names(changes) == [
        ("package amdgpu-dkms", "purge"),
        ("package amdgpu-dkms-firmware", "purge"),
        ("apt pin amdgpu-dkms", "write"),
    ]
    due = driver_plan.intree_due(state)
    assert due.initramfs and len(due.reboot) == 1
    apply_all(changes, box.host)
    assert box.text(paths.APT_PIN) == driver_plan.PIN_AWAY
    left = driver_state.read(box.host)
    assert driver_plan.plan_intree(left) == []
    assert not left.residue
    assert ("depmod", OLD_KERNEL) in box.commands
    assert box.text("/etc/apt/sources.list.d/amdgpu.list"), "sources stay"


def test_the_marker_is_on_the_disk_before_the_purge(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    seen: list[str | None] = []

    def look(_argv: Sequence[str], _env: Mapping[str, str]) -> None:
        seen.append(box.text(paths.ACTIVATION_DUE))

    box.on("apt-get", "purge", do=look)
    apply_all(driver_plan.plan_intree(driver_state.read(box.host)), box.host)
    assert seen and json.loads(str(seen[0]))["initramfs"] is True


def test_an_initramfs_is_not_rebuilt_by_the_packages(tmp_path: Path) -> None:
    box = dirty(tmp_path).file("/usr/sbin/update-initramfs", "#!/bin/sh\n")
    apply_all(driver_plan.plan_intree(driver_state.read(box.host)), box.host)
    purge = next(argv for argv in box.ran("apt-get") if "purge" in argv and "-s" not in argv)
    path = next(word for word in purge if word.startswith("DPkg::Path="))
    assert path.startswith(f"DPkg::Path={paths.HOLD_DIR}:")
    assert not box.host.exists(f"{paths.HOLD_DIR}/update-initramfs")


def test_installed_but_not_loaded_needs_no_reboot(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    box.remove("/sys/module/amdgpu/version")
    due = driver_plan.intree_due(driver_state.read(box.host))
    assert (due.initramfs, due.reboot) == (True, ())


def test_a_box_that_is_good_gets_only_the_pin(tmp_path: Path) -> None:
    box = Box(tmp_path).dpkg({}).loaded("in-tree", GOOD_KERNEL).file("/etc/apt/sources.list")
    state = driver_state.read(box.host)
    changes = driver_plan.plan_intree(state)
    assert names(changes) == [("apt pin amdgpu-dkms", "write")]
    assert not driver_plan.intree_due(state)
    apply_all(changes, box.host)
    assert driver_plan.plan_intree(driver_state.read(box.host)) == []
    assert box.text(paths.ACTIVATION_DUE) is None


def test_a_box_without_apt_gets_no_pin(tmp_path: Path) -> None:
    box = Box(tmp_path).loaded("in-tree", GOOD_KERNEL)
    assert driver_plan.plan_intree(driver_state.read(box.host)) == []


def test_what_others_need_is_a_refusal(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    box.on(
        "apt-get", "-s", "purge", stdout="Purg amdgpu-dkms [1]\nRemv amdgpu [1]\nRemv libdrm-amdgpu1 [1]\n"
    )
    assert driver_purge.refusals(box.host, ["amdgpu-dkms"]) == ["libdrm-amdgpu1"]


def test_where_apt_cannot_plan_dpkg_is_asked(tmp_path: Path) -> None:
    box = dirty(tmp_path).on("apt-get", "-s", rc=100, stderr="E: Unmet dependencies")
    assert driver_purge.refusals(box.host, ["amdgpu-dkms"]) == []
    assert any("--no-act" in argv for argv in box.ran("dpkg"))
    box.on("dpkg", "--no-act", rc=1, stderr="dependency problems")
    with pytest.raises(Refused, match="dependency"):
        driver_purge.refusals(box.host, ["amdgpu-dkms"])


def dark(tmp_path: Path) -> Box:
    """A failed build: blacklist, half-configured, the DKMS tree without its source."""
    box = Box(tmp_path)
    box.kernel(GOOD_KERNEL).module(GOOD_KERNEL, "in-tree").distribution()
    box.file(driver_state.BLACKLIST, "blacklist amdgpu\n").dkms(failed=GOOD_KERNEL, source=False)
    box.dkms_packages("install ok half-configured").amd_source()
    return box


def test_a_purge_that_amds_own_script_stops_still_finishes(tmp_path: Path) -> None:
    box = dark(tmp_path)
    prerm = box.file("/var/lib/dpkg/info/amdgpu-dkms.prerm", "#!/bin/bash\nset -e\ndkms remove\n").host
    originals = f"{driver_state.ORIGINALS}/{OLD_KERNEL}/x86_64"
    home = f"/lib/modules/{OLD_KERNEL}/kernel/drivers/gpu/drm/amd"
    box.file(f"{home}/README").file(f"{originals}/amdgpu.ko.zst", b"own")
    box.file(f"{originals}/amdxcp.ko.zst", b"xcp").file(
        f"{originals}/amdxcp.ko.zst.origin", f"{home}/x/amdxcp.ko.zst\n"
    )
    box.file(f"/lib/modules/{OLD_KERNEL}/updates/dkms/amdgpu.ko.zst").file(
        f"/lib/modules/{OLD_KERNEL}/updates/dkms/zfs.ko"
    )

    def dpkg(argv: Sequence[str], _env: Mapping[str, str]) -> Completed | None:
        if "--purge" not in argv:
            return None
        stopped = "dkms remove" in str(prerm.read("/var/lib/dpkg/info/amdgpu-dkms.prerm"))
        if not stopped:
            box.dpkg({})
        return Completed(tuple(argv), 1 if stopped else 0, "", "prerm failed")

    box.on("apt-get", "purge", rc=100, stderr="E: dpkg was interrupted").on("dpkg", do=dpkg)
    state = driver_state.read(box.host)
    changes = driver_plan.plan_intree(state)
    assert names(changes) == [
        ("dpkg", "repair"),
        ("package amdgpu-dkms", "purge"),
        ("package amdgpu-dkms-firmware", "purge"),
        (f"blacklist {driver_state.BLACKLIST}", "remove"),
        ("apt pin amdgpu-dkms", "write"),
    ]
    apply_all(changes, box.host)
    assert driver_plan.plan_intree(driver_state.read(box.host)) == []
    assert box.text(f"{home}/amdgpu/amdgpu.ko.zst") == "own", "the kernel's own module is back"
    assert box.text(f"{home}/x/amdxcp.ko.zst") == "xcp"
    assert not box.host.exists(driver_state.DKMS_TREE)
    assert box.host.exists(f"/lib/modules/{OLD_KERNEL}/updates/dkms/zfs.ko"), "another driver's module stays"
    assert not box.host.exists(driver_state.BLACKLIST)
    assert any("--configure" in argv and "-a" in argv for argv in box.ran("dpkg"))
    reasons = driver_plan.intree_due(state).reboot
    assert reasons == ("amdgpu is not loaded",)


def test_a_modules_way_back_from_another_disk_is_never_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in its place passes for the whole one, and the one that was put aside goes."""
    box = Box(tmp_path).kernel(OLD_KERNEL)
    home = f"/lib/modules/{OLD_KERNEL}/kernel/drivers/gpu/drm/amd"
    aside = f"{driver_state.ORIGINALS}/{OLD_KERNEL}/x86_64/amdgpu.ko.zst"
    box.file(f"{home}/README").file(aside, b"own")

    def killed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    def another_disk(*_arguments: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    with monkeypatch.context() as patch:
        patch.setattr("os.rename", another_disk)
        patch.setattr("shutil.copystat", killed)
        patch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            driver_purge.restore_originals(box.host)
    assert not box.host.exists(f"{home}/amdgpu/amdgpu.ko.zst")
    assert driver_purge.restore_originals(box.host) == [f"{home}/amdgpu/amdgpu.ko.zst"]
    assert box.text(f"{home}/amdgpu/amdgpu.ko.zst") == "own" and not box.host.exists(aside)


def test_other_lines_of_the_blacklist_file_stay(tmp_path: Path) -> None:
    box = Box(tmp_path).file(driver_state.BLACKLIST, "# mine\nblacklist  amdgpu \nblacklist amdgpu_extra\n")
    driver_purge.lift_blacklist(box.host)
    assert box.text(driver_state.BLACKLIST) == "# mine\nblacklist amdgpu_extra\n"


def test_left_overs_of_packages_that_are_gone_are_removed_one_by_one(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.kernel(GOOD_KERNEL).module(GOOD_KERNEL, "dkms").module(GOOD_KERNEL, "in-tree").loaded(
        "in-tree", GOOD_KERNEL
    )
    box.dkms(built=[GOOD_KERNEL]).dpkg({}).file(driver_state.HOOK).file(f"{driver_state.FIRMWARE}/x.bin")
    box.file("/var/lib/dpkg/info/amdgpu-dkms-firmware.list", f"{driver_state.FIRMWARE}/x.bin\n")
    box.file(paths.APT_PIN, driver_plan.PIN_AWAY)
    changes = driver_plan.plan_intree(driver_state.read(box.host))
    assert [action for _name, action in names(changes)] == ["remove"] * 4
    assert not any(re.search(r"\d\.\d", change.object) for change in changes)
    apply_all(changes, box.host)
    assert driver_plan.plan_intree(driver_state.read(box.host)) == []


def test_an_unfinished_package_of_others_is_finished(tmp_path: Path) -> None:
    box = Box(tmp_path).loaded("in-tree", GOOD_KERNEL).file(paths.APT_PIN, driver_plan.PIN_AWAY)
    box.dpkg({"tzdata": ("1", "install ok half-configured")})
    changes = driver_plan.plan_intree(driver_state.read(box.host))
    assert names(changes) == [("dpkg", "repair")]
    apply_all(changes, box.host)
    assert any("--configure" in argv for argv in box.ran("dpkg"))


def test_a_package_cut_while_unpacking_is_installed_anew(tmp_path: Path) -> None:
    box = Box(tmp_path).loaded("in-tree", GOOD_KERNEL).file(paths.APT_PIN, driver_plan.PIN_AWAY)
    box.dpkg(
        {"linux-modules-x": ("1", "install reinstreq half-installed"), "y": ("1", "install ok unpacked")}
    )
    box.on("dpkg", "--configure", rc=1)
    driver_purge.finish_dpkg(box.host)
    (argv,) = box.ran("apt-get")
    assert argv[-4:] == ("--fix-broken", "--reinstall", "install", "linux-modules-x")
    box.dpkg({"y": ("1", "install ok half-configured")})
    with pytest.raises(CommandFailed):
        driver_purge.finish_dpkg(box.host)


@pytest.mark.parametrize(
    ("own", "aside", "lacks"), [(True, False, False), (False, True, False), (False, False, True)]
)
def test_a_kernel_without_its_own_module_is_seen(tmp_path: Path, own: bool, aside: bool, lacks: bool) -> None:
    tree = Tree(tmp_path).file(f"/lib/modules/{GOOD_KERNEL}/modules.dep")
    if own:
        tree.module(GOOD_KERNEL, "in-tree")
    if aside:
        tree.file(f"{driver_state.ORIGINALS}/{GOOD_KERNEL}/x86_64/amdgpu.ko.zst")
    assert driver_state.lacks_own_module(tree.host, GOOD_KERNEL) is lacks
    assert not driver_state.lacks_own_module(tree.host, "not-installed-yet")


def test_firmware_of_another_package_stays(tmp_path: Path) -> None:
    box = Box(tmp_path).loaded("in-tree", GOOD_KERNEL).file(paths.APT_PIN, driver_plan.PIN_AWAY)
    for name in ("mine.bin", "amds.bin"):
        box.file(f"{driver_state.FIRMWARE}/{name}")
    box.file("/var/lib/dpkg/info/amdgpu-dkms-firmware.list", f"/.\n{driver_state.FIRMWARE}/amds.bin\n")
    box.file("/var/lib/dpkg/info/site-firmware:amd64.list", f"/.\n/usr{driver_state.FIRMWARE}/mine.bin\n")
    changes = driver_plan.plan_intree(driver_state.read(box.host))
    assert names(changes) == [(f"firmware {driver_state.FIRMWARE}", "remove")]
    apply_all(changes, box.host)
    assert box.host.listdir(driver_state.FIRMWARE) == ["mine.bin"]
    assert driver_plan.plan_intree(driver_state.read(box.host)) == []
