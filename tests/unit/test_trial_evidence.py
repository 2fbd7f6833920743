# SPDX-License-Identifier: Apache-2.0
"""What a trial that ended on the old kernel leaves, and what is said of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from driver_box import Box

from lemonade_deploy.domain import activation, grub, trial, trial_evidence, trial_menu, trial_units
from lemonade_deploy.domain.activation import Due

OLD, NEW = "6.14.0-37-generic", "7.0.0-31-generic"


def fallen(tmp_path: Path) -> tuple[Box, Due]:
    """The old kernel runs again, in another boot, after one try."""
    box = Box(tmp_path)
    box.kernel(OLD)
    box.file(activation.BOOT_ID, "0000-1\n")
    box.kernels(OLD, NEW)
    due = Due(kernel=NEW, tries=1, tried="0000-1")
    activation.save(box.host, due)
    trial.arm(box.host, NEW, 900)
    grub.clear_next(box.host)
    return box.file(activation.BOOT_ID, "0000-2\n"), due  # type: ignore[return-value]


def told(box: Box, due: Due) -> str:
    return "; ".join(trial_evidence.gather(box.host, due))


def test_nothing_left_is_said_to_be_nothing(tmp_path: Path) -> None:
    box, due = fallen(tmp_path)
    text = told(box, due)
    assert "try 1 of 2, begun in boot 0000-1" in text
    assert "GRUB took the entry, and nothing of that boot is left" in text


def test_a_one_shot_that_is_still_set_was_never_taken(tmp_path: Path) -> None:
    box, due = fallen(tmp_path)
    grub.set_next(box.host, trial_menu.TRIAL, NEW)
    assert "GRUB never took the one-shot entry" in told(box, due)


@pytest.mark.parametrize("path", [f"/boot/vmlinuz-{NEW}", f"/boot/initrd.img-{NEW}"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, path: str) -> None:
    box, due = fallen(tmp_path)
    box.remove(path)
    assert f"{path} is not there" in told(box, due)


def test_the_hosts_own_reboot_and_its_journal_are_told(tmp_path: Path) -> None:
    box, due = fallen(tmp_path)
    box.file(trial_units.SEEN_NOTE, f"aa-bb\n{NEW}\n").file(trial_units.EXPIRED_NOTE, f"aa-bb\n{NEW}\n")
    box.on("journalctl", "aabb", stdout="r8169: no firmware\nnetwork is down\n")
    text = told(box, due)
    assert "it came up (boot aa-bb), but nobody confirmed it in time" in text
    assert "r8169: no firmware | network is down" in text
    box.remove(trial_units.EXPIRED_NOTE)
    assert "it came up as far as the local file systems" in told(box, due)


def test_a_panic_that_the_firmware_kept_is_told_if_it_is_of_this_try(tmp_path: Path) -> None:
    box, due = fallen(tmp_path)
    path = f"{trial_evidence.PSTORE}/7330/dmesg.txt"
    box.file(path, "<6>[    1.0] x\n<0>[    1.2] Kernel panic - not syncing: VFS: Unable to mount root fs\n")
    assert f"{path}: Kernel panic - not syncing: VFS" in told(box, due)
    os.utime(tmp_path / path.lstrip("/"), (1, 1))
    assert "panic - not syncing" not in told(box, due)


def test_a_reset_by_the_watchdog_is_told(tmp_path: Path) -> None:
    box, due = fallen(tmp_path)
    box.file("/sys/class/watchdog/watchdog0/bootstatus", "0\n")
    assert "watchdog reset" not in told(box, due)
    box.file("/sys/class/watchdog/watchdog0/bootstatus", "32\n")
    assert "the hardware watchdog reset the box" in told(box, due)


def test_a_host_that_was_not_rebooted_at_all_is_not_blamed_on_the_kernel(tmp_path: Path) -> None:
    box, due = fallen(tmp_path)
    box.file(activation.BOOT_ID, "0000-1\n")
    assert "the host was not rebooted" in told(box, due)
