# SPDX-License-Identifier: Apache-2.0
"""GTT limit, service user, udev: what is wanted and what is planned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from driver_box import Box
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy.domain import memory, memory_plan, paths
from lemonade_deploy.domain.change import apply_all
from lemonade_deploy.domain.memory_plan import MemoryState, MemoryWish

GIB_KIB = 1024**2


@pytest.mark.parametrize(
    ("total_gib", "left_gib"),
    [(128, 115), (96, 86), (64, 56), (32, 24), (16, 8), (8, 0), (4, 0)],
)
def test_auto_is_ram_less_eight_gib_or_a_tenth(total_gib: int, left_gib: int) -> None:
    assert memory.auto_pages(total_gib * GIB_KIB) == left_gib * memory.PAGES_PER_GIB


@given(st.integers(20 * GIB_KIB, 2048 * GIB_KIB), st.integers(-200 * 1024, 200 * 1024))
def test_a_kernel_that_sees_a_little_more_or_less_changes_nothing(total: int, drift: int) -> None:
    first = memory.wanted_pages("auto", apu=True, total_kib=total, configured=None)
    again = memory.wanted_pages("auto", apu=True, total_kib=total + drift, configured=first)
    assert again == first


def test_a_value_far_off_is_not_kept() -> None:
    old = 48 * memory.PAGES_PER_GIB
    assert memory.wanted_pages(
        "auto", apu=True, total_kib=128 * GIB_KIB, configured=old
    ) == memory.auto_pages(128 * GIB_KIB)


def test_a_discrete_gpu_is_left_alone_unless_asked() -> None:
    assert memory.wanted_pages("auto", apu=False, total_kib=64 * GIB_KIB, configured=None) is None
    assert memory.wanted_pages("24", apu=False, total_kib=64 * GIB_KIB, configured=None) == 6291456


@pytest.mark.parametrize("request_", ["", "0", "-1", "1.5", "12G", "AUTO", "64", "128"])
def test_a_request_that_cannot_be_met_names_the_variable(request_: str) -> None:
    with pytest.raises(ValueError, match="gpu_memory_gtt_gib"):
        memory.wanted_pages(request_, apu=True, total_kib=64 * GIB_KIB, configured=None)


def test_what_is_written_is_what_is_read_back(tmp_path: Path) -> None:
    box = Box(tmp_path)
    assert memory.configured_pages(box.host) is None
    box.file(paths.GTT_MODPROBE, memory.modprobe_file("amdttm", 25165824))
    assert memory.configured_pages(box.host) == 25165824
    assert "options amdttm pages_limit=25165824 page_pool_size=25165824\n" in str(
        box.text(paths.GTT_MODPROBE)
    )


def test_rivals_are_those_that_say_something_else(tmp_path: Path) -> None:
    box = Box(tmp_path).file(paths.GTT_MODPROBE, memory.modprobe_file("ttm", 4096))
    box.file("/etc/modprobe.d/ttm.conf", "options ttm foo=1 \\\n  pages_limit=1\n")
    box.file("/usr/lib/modprobe.d/ttm.conf", "options ttm pages_limit=2\n")  # hidden by the one in /etc
    box.file("/etc/modprobe.d/old.conf.bak", "options ttm pages_limit=3\n")
    box.file("/etc/modprobe.d/same.conf", "options ttm pages_limit=4096\n")
    box.file("/proc/cmdline", "quiet amdgpu.gttsize=126976 ttm.pages_limit=4096\n")
    found = {(rival.where, rival.setting) for rival in memory.rivals(box.host, "ttm", 4096)}
    assert found == {
        ("/etc/modprobe.d/ttm.conf", "ttm.pages_limit=1"),
        ("kernel command line", "amdgpu.gttsize=126976"),
    }


WISH = MemoryWish(4096, "ttm", "lemonade")
DONE = MemoryState(memory.modprobe_file("ttm", 4096), memory_plan.UDEV_RULES, True, (), (), 4096)


def test_a_box_in_order_gets_no_change() -> None:
    assert memory_plan.plan(DONE, WISH) == []
    assert not memory_plan.due(DONE, WISH)


def test_a_fresh_box_gets_everything_and_then_nothing(tmp_path: Path) -> None:
    box = Box(tmp_path).file("/etc/passwd", "root:x:0:0::/root:/bin/sh\n").file("/etc/group", "video:x:44:\n")
    state = memory_plan.read(box.host, WISH)
    changes = memory_plan.plan(state, WISH)
    assert [(change.object, change.action) for change in changes] == [
        ("modprobe options ttm", "write"),
        ("udev rules", "write"),
        ("user lemonade", "create"),
        ("groups of lemonade", "add"),
    ]
    assert not any(re.search(r"\d", change.object) for change in changes)
    apply_all(changes, box.host)
    assert ("groupadd", "--system", "render") in box.commands
    assert ("usermod", "--append", "--groups", "render,video", "lemonade") in box.commands
    assert not box.ran("udevadm"), "no udev runs here"
    due = memory_plan.due(state, WISH)
    assert due.initramfs and due.reboot
    assert '"initramfs": true' in str(box.text(paths.ACTIVATION_DUE)), "marked before anything was done"


@pytest.mark.parametrize("prepared", [False, True])
def test_a_limit_that_is_not_in_effect_asks_for_a_boot_and_once_for_the_initramfs(prepared: bool) -> None:
    state = MemoryState(DONE.modprobe, DONE.udev, True, (), (), 99, prepared=prepared)
    assert memory_plan.plan(state, WISH) == []
    due = memory_plan.due(state, WISH)
    assert (due.initramfs, due.reboot) == (not prepared, ("ttm.pages_limit is 99, 4096 is wanted",))


@pytest.mark.parametrize(
    ("path", "text", "wins"),
    [
        ("/etc/modprobe.d/ttm.conf", "options ttm pages_limit=9\n", True),
        ("/etc/modprobe.d/amdgpu.conf", "options ttm pages_limit=9\n", False),
        ("/etc/modprobe.d/ttm.conf", "options amdttm pages_limit=9\n", False),
        ("/etc/modprobe.d/ttm.conf", "options ttm pages_limit=4096\n", False),
        ("/proc/cmdline", "quiet ttm.pages_limit=9\n", True),
        ("/proc/cmdline", "quiet amdgpu.gttsize=9\n", False),
    ],
)
def test_a_rival_that_wins_is_not_booted_for(tmp_path: Path, path: str, text: str, wins: bool) -> None:
    box = Box(tmp_path).file(path, text).file("/sys/module/ttm/parameters/pages_limit", "9\n")
    assert memory.outranked(box.host, "ttm", 4096) is wins
    assert (memory_plan.due(memory_plan.read(box.host, WISH), WISH).reboot == ()) is wins


def test_a_limit_that_is_no_longer_wanted_is_taken_away() -> None:
    changes = memory_plan.plan(DONE, MemoryWish(None, "ttm", "lemonade"))
    assert [(change.object, change.action) for change in changes] == [("modprobe options ttm", "remove")]


def test_a_running_udev_reads_the_rules(tmp_path: Path) -> None:
    box = Box(tmp_path).file("/run/udev/control")
    memory_plan.reload_udev(box.host)
    assert [argv[1] for argv in box.ran("udevadm")] == ["control", "trigger"]
