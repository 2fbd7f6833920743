# SPDX-License-Identifier: Apache-2.0
"""A kernel on trial: what GRUB boots at each step, what watches on the host."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from driver_box import Box, grub_cfg
from grub_box import state_of

from lemonade_deploy.domain import activation, grub, paths, trial, trial_menu, trial_units
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.trial_menu import Entries

OLD, NEW, NEWER = "6.14.0-37-generic", "7.0.0-31-generic", "7.1.0-4-generic"


def box_of(tmp_path: Path, *kernels: str, running: str = OLD) -> Box:
    box = Box(tmp_path)
    box.kernel(running)
    box.file(activation.BOOT_ID, "0000-1\n")
    return box.kernels(*(kernels or (OLD, NEW)))


def top(box: Box) -> list[tuple[str, str]]:
    """Our entries at the top: (id, kernel)."""
    return [(item.id, item.release) for item in state_of(box).menu if item.id.startswith(grub.ID_PREFIX)]


# -- the entries -----------------------------------------------------------------------------------


def test_only_the_trial_entry_has_the_trials_parameters(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    trial.pin(box.host, OLD, NEW)
    assert top(box) == [(trial_menu.GOOD, OLD), (trial_menu.TRIAL, NEW)]
    state = state_of(box)
    tried, good = state.entry(trial_menu.TRIAL), state.entry(trial_menu.GOOD)
    assert tried is not None and good is not None
    added = ("panic=30", "rd.shell=0", "rd.emergency=reboot", f"lemonade_deploy.trial={NEW}")
    assert tried.arguments[-4:] == added, "dracut opens a shell on a missing root but for these"
    assert tried.arguments[:-4] == good.arguments, "same root, same command line"
    assert tried.initrd and good.initrd
    text = str(box.text(grub.GRUB_CFG))
    assert text.count("panic=") == 1
    assert text.count(trial_menu.MARK) == 1


def test_the_known_good_kernel_is_what_everything_falls_back_to(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    trial.pin(box.host, OLD, NEW)
    state = state_of(box)
    assert (state.default_release(), state.fallback) == (OLD, (0,))
    for wrong in ("no-such-entry", ""):
        entry = grub.resolve(state.menu, wrong)
        assert entry is not None and entry.release == OLD


def test_a_kernel_that_is_not_installed_yet_has_no_entry_and_gets_one_with_its_files(tmp_path: Path) -> None:
    box = box_of(tmp_path, OLD)
    trial.pin(box.host, OLD, NEW)
    assert top(box) == [(trial_menu.GOOD, OLD)]
    box.file(f"/boot/vmlinuz-{NEW}")
    box.write_menu()  # what its package's hook does
    assert top(box) == [(trial_menu.GOOD, OLD), (trial_menu.TRIAL, NEW)]


def test_a_kernel_that_was_removed_leaves_no_entry_that_cannot_boot(tmp_path: Path) -> None:
    box = box_of(tmp_path, OLD, NEW)
    trial_menu.write(box.host, Entries(NEW, OLD))
    box.remove(f"/boot/vmlinuz-{NEW}")
    box.write_menu()
    assert top(box) == [(trial_menu.PREVIOUS, OLD)]
    assert state_of(box).fallback == (0,)


def test_the_recovery_entry_is_never_the_one_that_is_copied(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    trial_menu.write(box.host, Entries(OLD))
    entry = "menuentry 'x' $menuentry_id_option 'i' {{\n\tlinux\t/boot/vmlinuz-" + OLD + " ro {}\n}}\n"
    text = box._our_entries(
        entry.format("single") + entry.format("recovery nomodeset") + entry.format("quiet")
    )
    assert text.count("menuentry ") == 1
    assert "ro quiet" in text


def test_without_the_real_entries_there_are_none_of_ours(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    trial_menu.write(box.host, Entries(OLD, trial=NEW))
    text = box._our_entries("submenu 'x' {\n}\n")
    assert text == ""


@pytest.mark.parametrize("release", ["7.0'; reboot; '", "a b", "x\ny", "-x"])
def test_what_is_no_release_never_reaches_the_script(release: str) -> None:
    with pytest.raises(ValueError, match="no kernel release"):
        trial_menu.script(Entries(release))


def test_the_script_says_what_was_written(tmp_path: Path) -> None:
    box = Box(tmp_path)
    entries = Entries(OLD, "6.8.0-1-generic", NEW, trial_menu.trial_parameters(NEW, 60))
    assert trial_menu.write(box.host, entries)
    assert not trial_menu.write(box.host, entries), "nothing to write the second time"
    assert trial_menu.read(box.host) == entries
    assert os.access(tmp_path / trial_menu.SCRIPT.lstrip("/"), os.X_OK)


# -- the steps -------------------------------------------------------------------------------------


def test_a_menu_that_does_not_begin_with_the_running_kernel_is_no_pin(tmp_path: Path) -> None:
    """Something of the user's own stands first, or the settings win over ours."""
    box = box_of(tmp_path)

    def another(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
        box.file(argv[-1], grub_cfg(NEW, OLD))
        return Completed(tuple(argv), 0, "", "")

    box.on("grub-mkconfig", do=another)
    with pytest.raises(grub.EntryMissing, match=r"begin with 6\.14"):
        trial.pin(box.host, OLD, NEW)


def test_a_fallback_that_something_else_overwrites_is_no_pin(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    trial.pin(box.host, OLD, NEW)
    entries = trial_menu.read(box.host)
    assert trial.pinned(state_of(box), entries, OLD)
    assert not trial.pinned(state_of(box), entries, NEW)
    box.file(grub.GRUB_CFG, str(box.text(grub.GRUB_CFG)) + "set fallback=3\n")  # a script of the user's
    assert not trial.pinned(state_of(box), entries, OLD)


def test_armed_means_one_boot_of_the_new_kernel_with_its_watchers(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    trial.arm(box.host, NEW, 123)
    state = state_of(box)
    assert (state.default_release(), state.env["next_entry"]) == (OLD, trial_menu.TRIAL)
    assert state.next_release() == NEW
    assert "OnBootSec=123s" in str(box.text(f"{trial_units.FOLDER}/{trial_units.TIMER}"))
    last = [argv[0] for argv in box.commands if argv[0] in ("grub-mkconfig", "systemctl", "grub-reboot")]
    assert last[-1] == "grub-reboot", "nothing is left to do once the one-shot entry is set"


def test_a_kernel_without_an_entry_is_not_armed(tmp_path: Path) -> None:
    box = box_of(tmp_path, OLD)
    with pytest.raises(grub.EntryMissing, match="no trial entry"):
        trial.arm(box.host, NEW, 900)
    assert not box.ran("grub-reboot")


def test_promoted_the_new_kernel_is_default_first_and_without_trial_and_the_old_one_stays_behind_it(
    tmp_path: Path,
) -> None:
    box = box_of(tmp_path)
    trial.arm(box.host, NEW, 900)
    box.kernel(NEW)
    trial.promote(box.host, NEW)
    state = state_of(box)
    assert state.default_release() == NEW
    assert top(box) == [(trial_menu.GOOD, NEW), (trial_menu.PREVIOUS, OLD)]
    assert state.fallback == (0, 1)
    assert "panic=" not in str(box.text(grub.GRUB_CFG))
    assert box.text(paths.TRIAL_CONFIRMED)
    assert not box.host.glob(f"{trial_units.FOLDER}/lemonade-deploy-*")
    order = [argv[:2] for argv in box.commands]
    assert order.index(("systemctl", "stop")) < len(order) - 1 - order[::-1].index(
        ("grub-set-default", box.ran("grub-set-default")[-1][1])
    ), "the timer cannot fire between"


def test_the_next_trial_keeps_only_the_kernel_before(tmp_path: Path) -> None:
    assert trial.promoted(Entries(OLD, trial=NEW), NEW) == Entries(NEW, OLD)
    assert trial.promoted(Entries(NEW, OLD, NEWER), NEWER) == Entries(NEWER, NEW)
    assert trial.promoted(Entries(NEW, OLD), NEW) == Entries(NEW, OLD), "twice is once"


def test_given_up_leaves_no_one_shot_and_no_units(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    trial.arm(box.host, NEW, 900)
    trial.give_up(box.host)
    assert state_of(box).next_release() == ""
    assert state_of(box).default_release() == OLD
    assert not box.host.glob(f"{trial_units.FOLDER}/lemonade-deploy-*")


@pytest.mark.parametrize("left", [trial_units.TIMER, trial_units.SERVICE, trial_units.SEEN])
@pytest.mark.parametrize("end", [trial.give_up, lambda host: trial.promote(host, OLD)])
def test_units_of_which_a_pulled_plug_left_one_are_taken_away(
    tmp_path: Path, left: str, end: Callable[[Host], None]
) -> None:
    box = box_of(tmp_path)

    def systemctl(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
        units = [word for word in argv if word.endswith((".timer", ".service"))]
        lacking = [name for name in units if not box.host.exists(f"{trial_units.FOLDER}/{name}")]
        return Completed(tuple(argv), int(bool(lacking)), "", f"Unit file {lacking} does not exist.")

    trial.arm(box.on("systemctl", do=systemctl).host, NEW, 900)
    for name in {trial_units.TIMER, trial_units.SERVICE, trial_units.SEEN} - {left}:
        box.remove(f"{trial_units.FOLDER}/{name}")
    end(box.host)
    assert not box.host.glob(f"{trial_units.FOLDER}/lemonade-deploy-*")


# -- the watchers ----------------------------------------------------------------------------------


def test_the_watchers_work_only_in_a_trial_and_only_unconfirmed() -> None:
    for text in (trial_units.service(), trial_units.seen()):
        assert f"ExecCondition=/bin/grep -q {trial_menu.MARK}= /proc/cmdline" in text
        assert "ConditionKernelCommandLine" not in text, "reads PID 1's arguments in a container"
    for text in (trial_units.service(), trial_units.timer(60)):
        assert f"ConditionPathExists=!{paths.TRIAL_CONFIRMED}" in text
        assert "DefaultDependencies=no" in text, "an emergency shell must not keep it from running"


@pytest.mark.parametrize(
    ("line", "release"),
    [
        (f"ro quiet lemonade_deploy.trial={NEW} x", NEW),
        ("ro quiet", ""),
        ("lemonade_deploy.trial", ""),
        ("xlemonade_deploy.trial=1", ""),
    ],
)
def test_a_trial_is_known_by_its_mark(tmp_path: Path, line: str, release: str) -> None:
    assert trial_menu.marked(Box(tmp_path).file("/proc/cmdline", line + "\n").host) == release


@pytest.mark.parametrize(
    ("identity", "state", "armed"),
    [
        ("i6300ESB timer", "inactive", True),
        ("SP5100 TCO timer", None, True),
        ("Software Watchdog", "inactive", False),
        ("i6300ESB timer", "active", False),
        (None, None, False),
    ],
)
def test_a_hardware_watchdog_is_armed_for_the_trial_only(
    tmp_path: Path, identity: str | None, state: str | None, armed: bool
) -> None:
    box = box_of(tmp_path)
    if identity:
        box.file("/dev/watchdog0").file(f"{trial.WATCHDOG}/identity", identity + "\n")
    if state:
        box.file(f"{trial.WATCHDOG}/state", state + "\n")
    trial.pin(box.host, OLD, NEW)
    tried = state_of(box).entry(trial_menu.TRIAL)
    assert tried is not None
    assert ("systemd.watchdog_sec=60" in tried.arguments) == armed
    assert str(box.text(grub.GRUB_CFG)).count("watchdog") == int(armed)
