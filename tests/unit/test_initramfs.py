# SPDX-License-Identifier: Apache-2.0
"""The initramfs is rebuilt by what the host has: initramfs-tools, dracut, mkinitcpio, or nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from driver_box import Box
from trees import GOOD_KERNEL, OLD_KERNEL, Tree

from lemonade_deploy.domain import initramfs, paths
from lemonade_deploy.domain.alone import alone
from lemonade_deploy.domain.refusal import Refused

FEDORA = "6.18.9-200.fc43.x86_64"


def box_with(tmp_path: Path, tool: str) -> Box:
    """A box whose *tool* is there and writes what it is told to."""
    box = Box(tmp_path).file(f"/usr/bin/{tool}", "#!/bin/sh\n")

    def write(argv: Sequence[str], _env: Mapping[str, str]) -> None:
        path = argv[-1] if argv[-1].startswith("/") else initramfs.image(argv[-1])
        (box.root / path[1:]).unlink(missing_ok=True)
        box.file(path, f"by {argv[0]}")

    box.on(tool, do=write)
    return box


def test_dracut_writes_debians_images(tmp_path: Path) -> None:
    box = box_with(tmp_path, "dracut").kernels(GOOD_KERNEL, OLD_KERNEL)
    initramfs.rebuild(box.host)
    assert box.ran("dracut") == [
        ("dracut", "--force", "--kver", OLD_KERNEL, f"/boot/initrd.img-{OLD_KERNEL}"),
        ("dracut", "--force", "--kver", GOOD_KERNEL, f"/boot/initrd.img-{GOOD_KERNEL}"),
    ]
    assert not box.ran("update-initramfs")


def test_update_initramfs_goes_first_where_both_are_there(tmp_path: Path) -> None:
    box = box_with(tmp_path, "update-initramfs").kernels(GOOD_KERNEL).file("/usr/bin/dracut")
    initramfs.rebuild(box.host)
    assert box.ran("update-initramfs") and not box.ran("dracut")


def test_fedoras_images_keep_their_name(tmp_path: Path) -> None:
    box = box_with(tmp_path, "dracut")
    box.file(f"/boot/vmlinuz-{FEDORA}").file(f"/boot/initramfs-{FEDORA}.img", "old")
    box.file(f"/lib/modules/{FEDORA}/modules.dep")
    initramfs.rebuild(box.host)
    assert box.text(f"/boot/initramfs-{FEDORA}.img") == "by dracut"
    assert not box.host.exists(initramfs.image(FEDORA))


def test_mkinitcpio_makes_all_presets(tmp_path: Path) -> None:
    box = Box(tmp_path).file("/usr/bin/mkinitcpio").file("/boot/initramfs-linux.img", "old")
    with pytest.raises(initramfs.NotWritten, match=r"initramfs-linux\.img"):
        initramfs.rebuild(box.host)

    def write(_argv: Sequence[str], _env: Mapping[str, str]) -> None:
        box.remove("/boot/initramfs-linux.img").file("/boot/initramfs-linux.img", "new")

    box.on("mkinitcpio", "-P", do=write)
    initramfs.rebuild(box.host)


def test_an_image_that_stays_as_it_was_is_an_error(tmp_path: Path) -> None:
    box = Box(tmp_path).file("/usr/bin/dracut").kernels(GOOD_KERNEL)
    with pytest.raises(initramfs.NotWritten, match=f"dracut did not write /boot/initrd.img-{GOOD_KERNEL}"):
        initramfs.rebuild(box.host)


def test_without_any_tool_it_says_so(tmp_path: Path) -> None:
    box = Box(tmp_path).kernels(GOOD_KERNEL).on("update-initramfs", rc=127)
    with pytest.raises(Refused, match="none of update-initramfs, dracut and mkinitcpio"):
        initramfs.rebuild(box.host)


def test_an_image_of_the_operating_system_is_not_ours(tmp_path: Path) -> None:
    tree = Tree(tmp_path).file("/run/ostree-booted")
    with pytest.raises(Refused) as refusal:
        initramfs.rebuild(tree.host)
    assert "rpm-ostree initramfs --enable" in refusal.value.remedy


def test_two_runs_that_hold_rebuilds_back_do_not_fail_each_other(tmp_path: Path) -> None:
    """A module outlives its killed controller, and the next run has come as far."""
    box = Box(tmp_path).file("/usr/sbin/update-initramfs")
    with initramfs.held(box.host) as path, initramfs.held(box.host):
        assert path
    assert not box.host.exists(f"{paths.HOLD_DIR}/update-initramfs")


def test_two_rebuilds_never_write_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of a killed controller is still at it."""
    box = box_with(tmp_path, "update-initramfs").kernels(OLD_KERNEL)
    monkeypatch.setattr(initramfs, "_LOCK_WAIT", 0)
    with (
        alone(box.host, initramfs._LOCK, 0, "testing"),
        pytest.raises(Refused, match="rebuilding the initramfs"),
    ):
        initramfs.rebuild(box.host)
    assert not box.ran("update-initramfs")
    initramfs.rebuild(box.host)
    assert box.ran("update-initramfs")
