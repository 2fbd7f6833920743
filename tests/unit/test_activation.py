# SPDX-License-Identifier: Apache-2.0
"""activate: the due-marker, and the plan it leads to."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from activation_box import WISH, boot, good
from driver_box import Box, initrd, names
from hypothesis import given
from hypothesis import strategies as st
from trees import GOOD_KERNEL, OLD_KERNEL

from lemonade_deploy.domain import activate_steps, activation, grub, paths, trial, trial_menu
from lemonade_deploy.domain.activation import Due
from lemonade_deploy.domain.change import Change
from lemonade_deploy.domain.host import CommandFailed
from lemonade_deploy.domain.module import Refused
from lemonade_deploy.domain.proof import ProofWish

DUES = st.builds(
    Due,
    st.booleans(),
    st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(tuple),
    st.sampled_from([None, "7.0", "6.18"]),
    st.integers(0, 3),
)


# -- the marker ------------------------------------------------------------------------------------


@given(DUES)
def test_a_record_comes_back_as_it_was(due: Due) -> None:
    record = json.loads(json.dumps({**due.public(), "tries": due.tries, "tried": due.tried}))
    assert activation.parse(record) == due


@given(st.lists(DUES, max_size=4))
def test_nothing_that_is_due_gets_lost(dues: list[Due]) -> None:
    together = activation.union(dues)
    assert together.initramfs == any(due.initramfs for due in dues)
    assert set(together.reboot) == set(itertools.chain(*(due.reboot for due in dues)))
    kernels = [due.kernel for due in dues if due.kernel]
    assert together.kernel == (kernels[-1] if kernels else None)


def test_the_marker_survives_and_its_reasons_end_with_the_boot(tmp_path: Path) -> None:
    box = boot(Box(tmp_path), 1)
    activation.merge(box.host, Due(reboot=("a",)))
    activation.merge(box.host, Due(initramfs=True, kernel=GOOD_KERNEL))
    assert activation.load(box.host).reboot == ("a",)
    boot(box, 2)
    after = activation.load(box.host)
    assert (after.initramfs, after.reboot, after.kernel) == (True, (), GOOD_KERNEL)
    assert len(activation.read_due(box.host)) == 2
    activation.clear(box.host)
    assert not activation.load(box.host)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"reboot": 3}', '{"tries": null}', '{"tries": [1]}', '{"tries": 1e400}']
)
def test_a_marker_that_cannot_be_read_means_a_rebuild(tmp_path: Path, text: str) -> None:
    box = boot(Box(tmp_path).file(paths.ACTIVATION_DUE, text), 1)
    assert activation.load(box.host) == Due(initramfs=True)


def test_tries_belong_to_one_kernel() -> None:
    assert activation.union([Due(kernel="a", tries=2), Due(kernel="a")]).tries == 2
    assert activation.union([Due(kernel="a", tries=2), Due(kernel="b")]).tries == 0


# -- the plan --------------------------------------------------------------------------------------


def test_a_converged_box_is_proven_and_nothing_else(tmp_path: Path) -> None:
    box = good(tmp_path)
    situation = activate_steps.look(box.host, WISH, [Due(), Due()])
    assert activate_steps.plan(situation) == []
    assert activate_steps.prove(box.host, WISH, 0) == []
    assert activate_steps.prepare(box.host, situation, WISH, 900) == []
    assert not box.ran("update-initramfs")
    assert not box.host.exists(paths.ACTIVATION_DUE)


def test_check_mode_sees_what_the_run_will_see(tmp_path: Path) -> None:
    """Results of the earlier roles alone (check) and the marker they wrote (run) give one plan."""
    results = [Due(True, ("dkms is loaded",)), Due(True, ("old kernel",), GOOD_KERNEL), Due(True)]
    box = good(tmp_path, OLD_KERNEL, None, "dkms")
    predicted = activate_steps.plan(activate_steps.look(box.host, WISH, results))
    for due in results:
        activation.merge(box.host, due)
    done = activate_steps.plan(activate_steps.look(box.host, WISH, results))
    assert (
        names(predicted)
        == names(done)
        == [
            ("initramfs", "rebuild"),
            ("host", "reboot"),
            ("grub default", "promote"),
        ]
    )


@pytest.mark.parametrize(
    "reason",
    ["kernel", "origin", "limit"],
)
def test_a_boot_is_needed_by_what_runs(tmp_path: Path, reason: str) -> None:
    box = {
        "kernel": lambda: good(tmp_path, OLD_KERNEL),
        "origin": lambda: good(tmp_path, origin="dkms"),
        "limit": lambda: good(tmp_path, pages=1),
    }[reason]()
    situation = activate_steps.look(box.host, WISH, [])
    assert len(situation.reboot) == 1
    assert ("host", "reboot") in names(activate_steps.plan(situation))


def test_a_rebuild_without_a_boot_is_not_followed_by_one(tmp_path: Path) -> None:
    """DKMS was installed but not loaded: it is purged, and no reboot is taken."""
    box = good(tmp_path)
    situation = activate_steps.look(box.host, WISH, [Due(initramfs=True)])
    assert names(activate_steps.plan(situation)) == [("initramfs", "rebuild")]


def rebuilding(box: Box) -> Box:
    def update(argv: Sequence[str], _env: Mapping[str, str]) -> None:
        box.host.write(f"/boot/initrd.img-{argv[-1]}", initrd(argv[-1]))

    return box.on("update-initramfs", do=update)


def test_before_the_boot_the_rebuild_is_noted_as_done_and_the_kernel_pointed_at(tmp_path: Path) -> None:
    box = rebuilding(good(tmp_path, OLD_KERNEL, None))
    trial.pin(box.host, OLD_KERNEL, GOOD_KERNEL)
    situation = activate_steps.look(box.host, WISH, [Due(True, (), GOOD_KERNEL)])
    assert names(activate_steps.prepare(box.host, situation, WISH, 900)) == [("initramfs", "rebuild")]
    assert len(box.ran("update-initramfs")) == 2
    due = activation.load(box.host)
    assert (due.initramfs, due.kernel, due.tries) == (False, GOOD_KERNEL, 1)
    state = grub.read(box.host)
    assert state is not None
    assert (state.default_release(), state.next_release()) == (OLD_KERNEL, GOOD_KERNEL)


def test_the_one_shot_entry_is_set_after_the_initramfs(tmp_path: Path) -> None:
    """A plug pulled in between boots the old kernel."""
    box = rebuilding(good(tmp_path, OLD_KERNEL, None))
    activate_steps.prepare(
        box.host, activate_steps.look(box.host, WISH, [Due(True, (), GOOD_KERNEL)]), WISH, 900
    )
    done = [argv[0] for argv in box.commands if argv[0] in ("update-initramfs", "grub-reboot")]
    assert done == ["update-initramfs", "update-initramfs", "grub-reboot"]


def test_what_was_done_before_the_boot_was_refused_is_kept(tmp_path: Path) -> None:
    box = rebuilding(good(tmp_path, OLD_KERNEL, None)).on("grub-reboot", rc=1)
    situation = activate_steps.look(box.host, WISH, [Due(True, (), GOOD_KERNEL)])
    made: list[Change] = []
    with pytest.raises(CommandFailed):
        activate_steps.prepare(box.host, situation, WISH, 900, made=made)
    assert names(made) == [("initramfs", "rebuild")]


def test_a_kernel_that_is_not_whole_is_not_booted(tmp_path: Path) -> None:
    box = rebuilding(good(tmp_path, OLD_KERNEL, None))
    situation = activate_steps.look(box.host, WISH, [Due(kernel=GOOD_KERNEL)])
    dkms = ProofWish("dkms", GOOD_KERNEL, None)
    with pytest.raises(Refused, match="DKMS did not build"):
        activate_steps.prepare(box.host, situation, dkms, 900)
    box.remove(f"/lib/modules/{GOOD_KERNEL}/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko.zst")
    with pytest.raises(Refused, match="no amdgpu module"):
        activate_steps.prepare(box.host, situation, WISH, 900)
    box.remove(f"/boot/vmlinuz-{GOOD_KERNEL}")
    with pytest.raises(Refused, match="not installed"):
        activate_steps.prepare(box.host, situation, WISH, 900)
    assert not box.ran("grub-reboot")


def test_an_initramfs_that_is_cut_off_is_not_booted_and_is_no_try(tmp_path: Path) -> None:
    box = good(tmp_path, OLD_KERNEL, None)
    box.file(f"/boot/initrd.img-{GOOD_KERNEL}", initrd(GOOD_KERNEL)[:-5])
    situation = activate_steps.look(box.host, WISH, [Due(kernel=GOOD_KERNEL)])
    with pytest.raises(Refused, match="is not whole"):
        activate_steps.prepare(box.host, situation, WISH, 900)
    assert not box.ran("grub-reboot")
    assert activation.load(box.host).tries == 0


@pytest.mark.parametrize("seconds", [-1, 0, 29, 86_401, 10**20])
def test_a_trial_that_nobody_could_confirm_is_not_begun(tmp_path: Path, seconds: int) -> None:
    """A role that is used alone gets what the command would have refused."""
    box = good(tmp_path, OLD_KERNEL, None)
    situation = activate_steps.look(box.host, WISH, [Due(kernel=GOOD_KERNEL)])
    with pytest.raises(Refused, match=f"kernel_confirm_timeout is {seconds} s"):
        activate_steps.prepare(box.host, situation, WISH, seconds)
    assert activation.load(box.host).tries == 0 and not box.ran("grub-reboot")


def test_a_kernel_that_failed_twice_is_not_tried_again(tmp_path: Path) -> None:
    box = good(tmp_path, OLD_KERNEL, None)
    trial.pin(box.host, OLD_KERNEL, GOOD_KERNEL)
    grub.set_next(box.host, trial_menu.TRIAL, GOOD_KERNEL)
    activation.save(box.host, Due(kernel=GOOD_KERNEL, tries=activation.MAX_TRIES, tried="0000-0"))
    situation = activate_steps.look(box.host, WISH, [Due(kernel=GOOD_KERNEL)])
    with pytest.raises(Refused, match="booted 2 times"):
        activate_steps.prepare(box.host, situation, WISH, 900)
    state = grub.read(box.host)
    assert state is not None and state.next_release() == ""


def test_asking_again_in_the_same_boot_is_no_further_try(tmp_path: Path) -> None:
    box = good(tmp_path, OLD_KERNEL, None)
    trial.pin(box.host, OLD_KERNEL, GOOD_KERNEL)
    for expected, number in ((1, 1), (1, 1), (2, 2), (2, 2)):
        boot(box, number)
        situation = activate_steps.look(box.host, WISH, [Due(kernel=GOOD_KERNEL)])
        activate_steps.prepare(box.host, situation, WISH, 900)
        assert activation.load(box.host).tries == expected


def test_after_the_proof_the_kernel_becomes_the_default_and_nothing_is_due(tmp_path: Path) -> None:
    box = good(tmp_path)
    trial.pin(box.host, OLD_KERNEL, GOOD_KERNEL)
    due = Due(kernel=GOOD_KERNEL, tries=1)
    activation.save(box.host, due)
    box.file(trial_menu.CMDLINE, f"ro {trial_menu.MARK}={GOOD_KERNEL}\n")
    done = activate_steps.confirm(box.host, due, WISH)
    assert names(done) == [("grub default", "promote")]
    state = grub.read(box.host)
    assert state is not None and state.default_release() == GOOD_KERNEL
    assert not activation.load(box.host)
    assert activate_steps.confirm(box.host, Due(), WISH) == []


def test_a_run_that_was_cut_after_the_boot_is_brought_to_its_end(tmp_path: Path) -> None:
    box = good(tmp_path)
    trial.pin(box.host, OLD_KERNEL, GOOD_KERNEL)
    activation.save(box.host, Due(reboot=("old kernel",), kernel=GOOD_KERNEL, tries=1))
    boot(box, 2)
    situation = activate_steps.look(box.host, WISH, [])
    assert situation.reboot == ()
    assert names(activate_steps.plan(situation)) == [("grub default", "promote")]


def test_what_an_earlier_run_wanted_is_forgotten_for_what_this_one_wants(tmp_path: Path) -> None:
    box = good(tmp_path)
    activation.save(box.host, Due(kernel="6.18.20-061820-generic", tries=2))
    situation = activate_steps.look(box.host, WISH, [])
    assert activate_steps.plan(situation) == []
    activate_steps.prepare(box.host, situation, WISH, 900)


def test_another_kernels_boot_and_its_tries_are_forgotten_with_it(tmp_path: Path) -> None:
    """Its installation failed, or nobody rebooted; now the running kernel is to stay."""
    box = good(tmp_path)
    away = activation.kernel_reason(OLD_KERNEL, GOOD_KERNEL)
    activation.save(box.host, Due(True, (away, "dkms is loaded"), OLD_KERNEL, 1, "0000-1"))
    situation = activate_steps.look(box.host, WISH, [])
    assert situation.reboot == ("dkms is loaded",)
    activation.save(box.host, Due(reboot=(away,), kernel=OLD_KERNEL, tries=1, tried="0000-1"))
    situation = activate_steps.look(box.host, WISH, [])
    assert (situation.reboot, situation.due) == ((), Due(boot_id="0000-1"))


def test_a_try_of_another_kernel_in_the_same_boot_is_counted(tmp_path: Path) -> None:
    box = good(tmp_path, OLD_KERNEL, None)
    activation.save(box.host, Due(kernel="6.18.20-061820-generic", tries=1, tried="0000-1"))
    activate_steps.prepare(box.host, activate_steps.look(box.host, WISH, []), WISH, 900)
    assert activation.load(box.host).tries == 1


def test_a_trial_that_was_armed_and_is_not_wanted_any_more_is_disarmed(tmp_path: Path) -> None:
    """The next reboot, for whatever reason, would try it, and end in another one a while later."""
    box = good(tmp_path)
    box.module(OLD_KERNEL, "in-tree")
    trial.pin(box.host, GOOD_KERNEL)
    activation.save(box.host, Due(kernel=OLD_KERNEL, tries=1, tried="0000-1"))
    trial.arm(box.host, OLD_KERNEL, 900)
    situation = activate_steps.look(box.host, WISH, [])
    done = activate_steps.prepare(box.host, situation, WISH, 900)
    assert names(activate_steps.plan(situation)) == names(done) == [("grub one-shot entry", "disarm")]
    state = grub.read(box.host)
    assert state is not None and state.next_release() == "" and state.default_release() == GOOD_KERNEL
    assert activate_steps.plan(activate_steps.look(box.host, WISH, [])) == []
    activate_steps.prepare(box.host, activate_steps.look(box.host, WISH, []), WISH, 900)
    trial.arm(box.host, OLD_KERNEL, 900)
    wanted = ProofWish("in-tree", OLD_KERNEL, None)
    situation = activate_steps.look(box.host, wanted, [Due(kernel=OLD_KERNEL)])
    assert not situation.armed, "that one is wanted"
