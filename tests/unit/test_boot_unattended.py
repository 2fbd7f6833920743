# SPDX-License-Identifier: Apache-2.0
"""A reboot that nobody watches: the kernel that stays is what boots, and nothing waits for a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_box import Box, menu_id
from grub_box import NEW, OLD, box_of, state_of

from lemonade_deploy.domain import (
    activate_steps,
    activation,
    boot_loader,
    grub,
    proof,
    trial,
    trial_menu,
    trial_units,
)
from lemonade_deploy.domain.activation import Due
from lemonade_deploy.domain.proof import ProofWish
from lemonade_deploy.domain.refusal import Refused

# -- the kernel that stays is what boots -----------------------------------------------------------


def staying(tmp_path: Path) -> tuple[Box, ProofWish]:
    """The older kernel runs and stays; an update brought a newer one, which GRUB boots by default."""
    box = box_of(tmp_path).loaded("dkms", OLD)
    return box, ProofWish("in-tree", OLD, None)


def names_of(situation: activate_steps.Situation) -> list[tuple[str, str]]:
    return [(change.object, change.action) for change in activate_steps.plan(situation)]


def test_before_the_reboot_the_kernel_that_stays_is_pinned_and_check_mode_says_so(tmp_path: Path) -> None:
    box, wish = staying(tmp_path)
    assert state_of(box).default_release() == NEW
    situation = activate_steps.look(box.host, wish, [])
    assert names_of(situation) == [("grub default", "pin"), ("host", "reboot")]
    done = activate_steps.prepare(box.host, situation, wish, 900)
    assert [(change.object, change.action) for change in done] == [("grub default", "pin")]
    state = state_of(box)
    assert (state.default_release(), state.next_release()) == (OLD, "")
    assert trial.pinned(state, trial_menu.read(box.host), OLD)
    assert names_of(activate_steps.look(box.host, wish, [])) == [("host", "reboot")]


def test_a_one_shot_entry_of_another_kernel_goes_before_the_reboot(tmp_path: Path) -> None:
    box, wish = staying(tmp_path)
    grub.set_next(box.host, menu_id(NEW), NEW)
    activate_steps.prepare(box.host, activate_steps.look(box.host, wish, []), wish, 900)
    assert state_of(box).env.get("next_entry", "") == ""


def test_a_kernel_that_stays_and_is_not_in_the_menu_is_not_rebooted(tmp_path: Path) -> None:
    box, wish = staying(tmp_path)
    box.remove(f"/boot/vmlinuz-{OLD}").write_menu()
    with pytest.raises(Refused, match="has no entry for the running kernel"):
        activate_steps.prepare(box.host, activate_steps.look(box.host, wish, []), wish, 900)


def test_a_trial_that_nobody_confirmed_is_not_pinned(tmp_path: Path) -> None:
    box, wish = staying(tmp_path)
    box.file(trial_menu.CMDLINE, f"ro {trial_menu.MARK}={OLD}\n")
    assert ("grub default", "pin") not in names_of(activate_steps.look(box.host, wish, []))


def test_without_grub_the_kernel_that_stays_is_no_matter(tmp_path: Path) -> None:
    box, wish = staying(tmp_path)
    box.remove(grub.GRUB_CFG)
    assert names_of(activate_steps.look(box.host, wish, [])) == [("host", "reboot")]


def test_only_a_trial_falls_back(tmp_path: Path) -> None:
    box, _wish = staying(tmp_path)
    wish = ProofWish("dkms", NEW, None)
    assert "GRUB booted another kernel" in proof.problems(box.host, wish)[0].remedy
    activation.save(box.host, Due(kernel=NEW, tries=1))
    assert "fell back" in proof.problems(box.host, wish)[0].remedy


# -- nobody is there to press a key ----------------------------------------------------------------

SECRET = 'set superusers="root"\npassword_pbkdf2 root grub.pbkdf2.x\n'


@pytest.mark.parametrize(
    ("settings", "menu", "named"),
    [
        ("GRUB_TIMEOUT=-1\n", "", "GRUB_TIMEOUT=-1"),
        ("GRUB_RECORDFAIL_TIMEOUT=-1\n", "", "GRUB_RECORDFAIL_TIMEOUT=-1"),
        ("", "if [ x = y ]; then set timeout=-1; fi\n", "set timeout=-1"),
        ("", SECRET, "superusers"),
    ],
)
def test_a_box_that_would_wait_for_a_key_is_refused(
    tmp_path: Path, settings: str, menu: str, named: str
) -> None:
    box = box_of(tmp_path)
    box.file(grub.DEFAULT_FILE, settings).file(grub.GRUB_CFG, menu + str(box.text(grub.GRUB_CFG)))
    with pytest.raises(Refused) as raised:
        boot_loader.demand(box.host)
    assert named in raised.value.found
    assert raised.value.remedy


def test_a_password_for_changes_only_is_fine(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    text = SECRET + str(box.text(grub.GRUB_CFG)).replace("--class os", "--class os --unrestricted")
    box.file(grub.GRUB_CFG, text)
    assert state_of(box).waits == ""


def test_a_shutdown_that_hangs_is_cut_off() -> None:
    lines = trial_units.service().splitlines()
    starts = [line for line in lines if line.startswith("ExecStart=")]
    assert starts == [
        "ExecStart=-/bin/systemctl --no-block reboot",
        f"ExecStart=/bin/sleep {trial_units.FORCE_SECONDS}",
        "ExecStart=/bin/systemctl --force --force reboot",
    ]
    assert not any(line.startswith("Conflicts=") for line in lines), "the shutdown would end what watches it"
