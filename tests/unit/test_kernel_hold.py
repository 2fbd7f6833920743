# SPDX-License-Identifier: Apache-2.0
"""The proven kernel stays: holds with a date, kept kernels, and kernels that are only half there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from driver_box import Box

from lemonade_deploy.domain import disk, dpkg, kernel_hold, kernel_plan, paths
from lemonade_deploy.domain.host import CommandFailed, Completed
from lemonade_deploy.domain.kernel_plan import KernelState, KernelWish
from lemonade_deploy.domain.module import Refused

OLD, NEW = "6.14.0-37-generic", "7.0.0-31-generic"
METAS = ("linux-generic-hwe-24.04", "linux-image-generic-hwe-24.04", "linux-headers-oem-24.04d")


def box_of(tmp_path: Path, **states: str) -> Box:
    """A box with metapackages and others; apt-mark changes dpkg's status file."""
    box = Box(tmp_path)
    box.kernel(OLD)
    box.kernels(OLD)
    names = {name: "install ok installed" for name in (*METAS, "linux-firmware", f"linux-image-{OLD}")}
    names |= {name.replace("_", "-"): state for name, state in states.items()}
    status(box, names)

    def mark(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
        text = str(box.text(dpkg.STATUS))
        want = "hold" if argv[1] == "hold" else "install"
        for name in argv[2:]:
            text = re.sub(rf"(Package: {re.escape(name)}\nStatus: )\S+", rf"\g<1>{want}", text)
        box.file(dpkg.STATUS, text)
        return Completed(tuple(argv), 0, "", "")

    return box.on("apt-mark", "hold", do=mark).on("apt-mark", "unhold", do=mark)


def status(box: Box, names: Mapping[str, str]) -> None:
    stanzas = (f"Package: {name}\nStatus: {state}\nVersion: 1\n" for name, state in names.items())
    box.file(dpkg.STATUS, "\n".join(stanzas))


def on_hold(box: Box) -> set[str]:
    return {name for name, package in dpkg.packages(box.host).items() if package.want == "hold"}


def test_metapackages_are_held_and_nothing_else(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    kernel_hold.hold(box.host, NEW)
    assert on_hold(box) == set(METAS)
    record = kernel_hold.read(box.host)
    assert record is not None
    assert (record.kernel, set(record.packages)) == (NEW, set(METAS))


@pytest.mark.parametrize(
    ("name", "meta"),
    [
        *((name, True) for name in METAS),
        *((name, True) for name in ("linux-generic", "linux-image-amd64", "linux-oem-24.04d")),
        *((name, True) for name in ("linux-virtual-hwe-24.04-edge", "linux-image-cloud-amd64")),
        *(
            (name, True)
            for name in ("linux-image-generic-6.14", "linux-generic-6.14", "linux-image-oem-6.14")
        ),
        *((name, True) for name in ("linux-nvidia", "linux-realtime", "linux-image-extra-virtual")),
        *((name, True) for name in ("linux-nvidia-64k-hwe-24.04", "linux-oem-6.17", "linux-headers-aws")),
        *((name, False) for name in (f"linux-image-{NEW}", "linux-firmware", "linux-libc-dev", "linux-base")),
        *((name, False) for name in ("linux-tools-common", f"linux-headers-{NEW}")),
    ],
)
def test_what_a_metapackage_is(tmp_path: Path, name: str, meta: bool) -> None:
    box = Box(tmp_path)
    status(box, {name: "install ok installed"})
    assert kernel_hold.metas(box.host) == ([name] if meta else [])


def test_a_hold_of_the_users_own_stays_theirs(tmp_path: Path) -> None:
    box = box_of(tmp_path, **{"linux-generic-hwe-24.04": "hold ok installed"})
    kernel_hold.hold(box.host, NEW)
    kernel_hold.release(box.host)
    assert on_hold(box) == {"linux-generic-hwe-24.04"}
    assert kernel_hold.read(box.host) is None


def test_the_age_of_a_hold(tmp_path: Path) -> None:
    held = kernel_hold.Hold(NEW, 1_000_000, ())
    assert held.days(1_000_000 + 41 * 86400 + 5) == 41
    assert held.days(0) == 0, "a clock that was set back"
    assert kernel_hold.read(Box(tmp_path).file(paths.KERNEL_HOLD, "{").host) is not None


@pytest.mark.parametrize("since", ["1e400", "null", "NaN", '"x"'])
def test_a_record_that_cannot_be_read_is_a_hold_of_unknown_age(tmp_path: Path, since: str) -> None:
    record = f'{{"kernel": "{NEW}", "since": {since}, "packages": []}}'
    held = kernel_hold.read(Box(tmp_path).file(paths.KERNEL_HOLD, record).host)
    assert held == kernel_hold.Hold(kernel_hold.UNKNOWN, 0, ())


def aged(tmp_path: Path) -> Box:
    """A box on which the metapackages were held for OLD long ago."""
    box = box_of(tmp_path)
    kernel_hold.hold(box.host, OLD)
    text = re.sub(r'"since": \d+', '"since": 1000', str(box.text(paths.KERNEL_HOLD)))
    return box.file(paths.KERNEL_HOLD, text)


def test_a_failed_installation_does_not_make_the_hold_young(tmp_path: Path) -> None:
    box = aged(tmp_path)
    with pytest.raises(OSError, match="apt failed"), kernel_hold.lifted(box.host):
        assert on_hold(box) == set()
        raise OSError("apt failed")
    held = kernel_hold.read(box.host)
    assert held is not None and (held.kernel, held.since) == (OLD, 1000)
    assert on_hold(box) == set(METAS)
    kernel_hold.hold(box.host, NEW)
    held = kernel_hold.read(box.host)
    assert held is not None and held.since > 1000, "another kernel's hold is a new one"


def test_a_plug_pulled_while_the_hold_is_lifted_loses_nothing(tmp_path: Path) -> None:
    box = aged(tmp_path)
    lifted = kernel_hold.lifted(box.host)
    lifted.__enter__()
    held = kernel_hold.read(box.host)  # what the next run finds
    assert held is not None and set(held.packages) == set(METAS)
    assert plan(OLD, held) == ["kernel hold: set"], "for the kernel that was not changed as well"
    kernel_hold.hold(box.host, OLD)
    held = kernel_hold.read(box.host)
    assert held is not None and (held.kernel, held.since) == (OLD, 1000)
    assert on_hold(box) == set(METAS)


def test_kept_kernels_are_named_exactly(tmp_path: Path) -> None:
    box = Box(tmp_path)
    kernel_hold.keep(box.host, [OLD, NEW, OLD, ""])
    patterns = re.findall(r'^  "(.*)";$', str(box.text(paths.KERNEL_KEEP)), re.MULTILINE)
    assert len(patterns) == 2
    assert all(re.search(patterns[0], f"linux-{part}-{OLD}") for part in ("image", "modules-extra"))
    assert not re.search(patterns[0], "linux-image-6x14.0-37-generic")
    assert not re.search(patterns[0], f"linux-image-{OLD}-edge")


# -- in the plan -----------------------------------------------------------------------------------


def plan(release: str, held: kernel_hold.Hold | None, hold: bool = True, running: str = OLD) -> list[str]:
    state = KernelState(running, True, None, held=held)
    wish = KernelWish(release, (), hold=hold)
    return [f"{change.object}: {change.action}" for change in kernel_plan.plan(state, wish)]


def test_a_box_whose_kernel_we_never_chose_is_not_held() -> None:
    assert plan("", None) == []
    assert plan(OLD, None) == []


def test_a_hold_follows_the_kernel_and_the_variable() -> None:
    record = kernel_hold.Hold(OLD, 1, METAS)
    assert plan("", record) == []
    assert plan("", kernel_hold.Hold(NEW, 1, METAS)) == ["kernel hold: set"]
    assert plan("", record, hold=False) == ["kernel hold: release"]
    assert plan("", None, hold=False) == []


def test_our_own_hold_does_not_stand_in_the_way_of_an_installation(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    kernel_hold.hold(box.host, OLD)
    held_then: list[set[str]] = []

    def install(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
        held_then.append(on_hold(box))
        box.kernels(OLD, NEW).module(NEW, "in-tree")
        return Completed(tuple(argv), 0, "", "")

    box.on("apt-get", "install", do=install)
    state = KernelState(OLD, False, None, held=kernel_hold.read(box.host))
    kernel_plan.install(box.host, KernelWish(NEW, ("linux-generic-hwe-24.04",)), state)
    assert held_then == [set()]
    assert on_hold(box) == set(METAS)
    assert f"linux-(image|image-unsigned|modules|modules-extra|headers)-{re.escape(NEW)}" in str(
        box.text(paths.KERNEL_KEEP)
    )


def test_an_installation_that_fails_leaves_the_hold_as_it_was(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    kernel_hold.hold(box.host, OLD)
    box.on("apt-get", "install", rc=100, stderr="E: no network")
    state = KernelState(OLD, False, None, held=kernel_hold.read(box.host))
    with pytest.raises(CommandFailed):
        kernel_plan.install(box.host, KernelWish(NEW, ("linux-generic-hwe-24.04",)), state)
    assert on_hold(box) == set(METAS)
    assert kernel_hold.read(box.host) == state.held


def test_a_kernel_that_is_held_already_and_put_back_needs_no_second_hold(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    kernel_hold.hold(box.host, NEW)
    box.on("apt-get", "install", do=lambda _argv, _env: box.kernels(OLD, NEW).module(NEW, "in-tree") and None)
    wish = KernelWish(NEW, ("linux-generic-hwe-24.04",))
    kernel_plan.install(box.host, wish, KernelState(OLD, False, None, held=kernel_hold.read(box.host)))
    assert plan(NEW, kernel_hold.read(box.host), running=NEW) == []


def test_a_kernel_whose_files_are_gone_is_put_back(tmp_path: Path) -> None:
    """Its package is installed: installing it again brings nothing."""
    box = box_of(tmp_path, **{f"linux-image-{NEW}": "install ok installed"})

    def install(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
        if "--reinstall" in argv:
            box.kernels(OLD, NEW).module(NEW, "in-tree")
        return Completed(tuple(argv), 0, "", "")

    box.on("apt-get", "install", do=install)
    kernel_plan.install(box.host, KernelWish(NEW, ("linux-generic",)), KernelState(OLD, False, None))
    again = [argv for argv in box.ran("apt-get") if "--reinstall" in argv]
    assert [argv[-1] for argv in again] == [f"linux-image-{NEW}"]


def test_the_space_in_boot_is_judged_by_the_running_kernels_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = box_of(tmp_path)
    with open(tmp_path / f"boot/initrd.img-{OLD}", "r+b") as image:
        image.truncate(300 * disk.MIB)
    monkeypatch.setattr(disk, "free_bytes", lambda _host, _path: 500 * disk.MIB)
    with pytest.raises(Refused, match=r"500 MiB free.*need 601 MiB"):
        kernel_plan.demand_space(box.host)
    monkeypatch.setattr(disk, "free_bytes", lambda _host, _path: 602 * disk.MIB)
    kernel_plan.demand_space(box.host)


def test_other_dkms_modules_bring_the_headers_of_a_new_kernel(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    box.file(f"/var/lib/dkms/r8125/9.1/{OLD}/x86_64/module/r8125.ko")
    wish = KernelWish(NEW, ("linux-generic",))
    assert kernel_plan.missing_packages(box.host, wish, []) == (f"linux-headers-{NEW}",)
    box.file(f"/var/lib/dkms/r8125/9.1/{NEW}/x86_64/module/r8125.ko")
    assert kernel_plan.missing_packages(box.host, wish, []) == ()
