# SPDX-License-Identifier: Apache-2.0
"""What would stop a later layer is refused before the first one changes the host, in words with a remedy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from driver_box import Box, dirty, grub_cfg
from trees import GOOD_KERNEL, OLD_KERNEL

from lemonade_deploy.domain import (
    apt_refusal,
    disk,
    dpkg,
    dpkg_world,
    driver_plan,
    driver_purge,
    driver_state,
    kernel_foresight,
    kernel_hold,
    paths,
)
from lemonade_deploy.domain.change import apply_all
from lemonade_deploy.domain.decision import Bundle, Decision, Driver, KernelChoice
from lemonade_deploy.domain.host import CommandFailed, Completed
from lemonade_deploy.domain.refusal import Refused

HWE = "linux-generic-hwe-24.04"
OK = "install ok installed"
HELD = f"""\
The following NEW packages will be installed:
  {HWE} linux-image-{GOOD_KERNEL}
The following held packages will be changed:
  {HWE}
0 upgraded, 7 newly installed, 0 to remove and 0 not upgraded.
"""
UNMET = f"""\
The following packages have unmet dependencies:
 {HWE} : Depends: linux-image-generic-hwe-24.04 (= 7.0.0) but it is not going to be installed
                           Depends: linux-headers-generic-hwe-24.04 (= 7.0.0) but it is not going to be
 unrelated : Depends: not-there but it is not installable
             Depends: nor-this but it is not installable
"""


def refused(stdout: str, stderr: str = "E: no") -> Refused:
    error = CommandFailed(Completed(("apt-get",), 100, stdout, stderr))
    return apt_refusal.explain(error, f"installing {HWE}", [HWE], ", or set kernel_source: keep")


def test_a_hold_is_named_with_the_way_out() -> None:
    told = refused(
        HELD, "E: Held packages were changed and -y was used without --allow-change-held-packages."
    )
    assert HWE in told.found and "hold" in told.found and "-y" not in told.found
    assert told.remedy == f"`apt-mark unhold {HWE}`, or set kernel_source: keep, then run again"


def test_an_unmet_dependency_is_named_and_not_what_follows_from_it() -> None:
    told = refused(UNMET)
    assert "unrelated: Depends: not-there" in told.found and "unrelated: Depends: nor-this" in told.found
    assert "linux-image-generic" not in told.found
    assert "apt-get --fix-broken install" in told.remedy


def test_anything_else_is_apts_own_word() -> None:
    assert "E: Broken disk" in refused("", "E: Broken disk\n").found


# -- dpkg's state as it will be --------------------------------------------------------------------


def test_the_state_after_purge_repair_and_release(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.dpkg(
        {
            "amdgpu-dkms": ("1", "install ok half-configured"),
            "amdgpu": ("1", OK),
            "held-by-us": ("1", "hold ok installed"),
            "held-by-them": ("1", "hold ok installed"),
            "cut": ("1", "install reinstreq half-installed"),
        }
    )
    text = dpkg_world.after(box.host, gone=driver_state.may_go, released=["held-by-us"], finished=True)
    box.file(dpkg.STATUS, text)
    left = {name: (p.want, p.state, p.reinstall) for name, p in dpkg.packages(box.host).items()}
    assert left == {
        "held-by-us": ("install", "installed", False),
        "held-by-them": ("hold", "installed", False),
        "cut": ("install", "installed", False),
    }
    assert "\n more\n" in text, "the other fields stay as they are"


def meta(box: Box, name: str = "amdgpu") -> Box:
    """AMD's meta package on top of its driver packages."""
    text = str(box.text(dpkg.STATUS)).rstrip("\n")
    depends = f"Package: {name}\nStatus: {OK}\nVersion: 1\nDepends: x | y, amdgpu-dkms (>= 1)\n"
    box.file(dpkg.STATUS, f"{text}\n\n{depends}")
    return box


def test_where_dpkg_judges_the_meta_package_goes_along(tmp_path: Path) -> None:
    box = meta(dirty(tmp_path)).on("apt-get", "-s", rc=100).on("apt-get", "purge", rc=100)

    def needs_all(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
        bad = "amdgpu" not in argv
        if not bad and "--no-act" not in argv:
            box.dpkg({})
        return Completed(tuple(argv), int(bad), "", " amdgpu depends on amdgpu-dkms.\n")

    box.on("dpkg", "--purge", do=needs_all)
    state = driver_state.read(box.host)
    driver_purge.demand(box.host, state)
    apply_all(driver_plan.plan_intree(state), box.host)
    assert driver_plan.plan_intree(driver_state.read(box.host)) == []


def test_what_else_depends_on_the_driver_is_named(tmp_path: Path) -> None:
    box = meta(dirty(tmp_path), "site-tools").on("apt-get", "-s", rc=100)
    told = " site-tools depends on amdgpu-dkms.\n amdgpu-dkms depends on amdgpu-dkms-firmware.\n\n"
    told += "dpkg: error processing package amdgpu-dkms (--purge):\n"
    box.on("dpkg", "--no-act", rc=1, stderr=told)
    with pytest.raises(Refused, match="site-tools depends on amdgpu-dkms") as refusal:
        driver_purge.demand(box.host, driver_state.read(box.host))
    assert "error processing" not in refusal.value.found and "by hand" in refusal.value.remedy
    assert refusal.value.found.endswith(" cannot be purged: site-tools depends on amdgpu-dkms")


def test_a_repair_that_apt_cannot_do_is_refused_before_the_purge(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    status = (
        f"{str(box.text(dpkg.STATUS)).rstrip()}\n\nPackage: cut\nStatus: install reinstreq half-installed\n"
    )
    box.file(dpkg.STATUS, f"{status}Version: 1\n").on("apt-get", "--reinstall", rc=100, stdout=UNMET)
    with pytest.raises(Refused, match=r"repairing cut.*unrelated: Depends: not-there"):
        driver_purge.demand(box.host, driver_state.read(box.host))
    box.on("apt-get", "--reinstall")
    driver_purge.demand(box.host, driver_state.read(box.host))


# -- the kernel ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _plenty_of_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _host, _path: 500 * disk.GIB)


def decision(policy: str = "intree") -> Decision:
    driver = Driver(policy, {"intree": "in-tree"}.get(policy, policy), "dkms-broken")
    kernel = KernelChoice("install", GOOD_KERNEL, (HWE,), OLD_KERNEL, "fixed", "hwe")
    return Decision(driver, None, kernel, Bundle("b", "f", "t"), None)


def box_of(tmp_path: Path) -> Box:
    """A dirty box that could take the kernel."""
    box = dirty(tmp_path)
    box.kernels(OLD_KERNEL).grub_disk()
    box.write_menu()
    box.on("grub-probe", "--target=fs", stdout="ext2\n").on("grub-probe", "--target=abstraction")
    stanza = "Package: {}\nVersion: 1\nArchitecture: amd64\n\n"
    known = stanza.format(HWE) + stanza.format(f"linux-headers-{GOOD_KERNEL}")
    box.on("apt-cache", "show", stdout=known)
    return box.on("grub-mkconfig", stdout=grub_cfg(OLD_KERNEL))


def test_a_box_that_can_take_the_kernel_is_not_touched(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    before = box.snapshot()
    kernel_foresight.demand(box.host, decision(), menu=True)
    after = {path: seen for path, seen in box.snapshot().items() if path != str(tmp_path / "tmp")}
    assert after == before
    assert [argv for argv in box.ran("grub-mkconfig")] == [("grub-mkconfig",)]
    assert all("-s" in argv or "update" in argv or "download" in argv for argv in box.ran("apt-get"))


def test_apt_plans_on_what_will_be(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    seen: list[str] = []

    def status(argv: Sequence[str], _env: Mapping[str, str]) -> None:
        folder = argv[argv.index("-c") + 1].rpartition("/")[0]
        conf = str(box.text(f"{folder}/apt.conf"))
        assert f'Dir::State::status "{folder}/status";' in conf
        seen.append(str(box.text(f"{folder}/status")))

    box.on("apt-get", "-s", "install", do=status)
    kernel_foresight.demand(box.host, decision(), menu=False)
    assert seen and "amdgpu-dkms" not in seen[-1]
    kernel_foresight.demand(
        box.file(paths.KERNEL_HOLD, json.dumps({"kernel": "x", "since": 1, "packages": [HWE]})).host,
        decision("dkms"),
        menu=False,
    )
    assert "amdgpu-dkms" in seen[-1], "the driver stays, and with it its packages"


def test_only_our_own_hold_is_looked_through(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    box.file(paths.KERNEL_HOLD, json.dumps({"kernel": "x", "since": 1, "packages": ["ours"]}))
    box.on("apt-get", "-s", "install", rc=100, stdout=HELD)
    assert kernel_hold.read(box.host) is not None
    with pytest.raises(Refused, match="on hold"):
        kernel_foresight.demand(box.host, decision(), menu=False)
    assert not any("--allow-change-held-packages" in argv for argv in box.ran("apt-get"))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ((("apt-get", "-s", "install"), 100, HELD), "on hold"),
        ((("apt-get", "-s", "install"), 100, UNMET), "unrelated: Depends: not-there"),
        ((("grub-mkconfig",), 1, grub_cfg(OLD_KERNEL)), "ends with code 1: a script of /etc/grub.d"),
        ((("grub-mkconfig",), 0, "# no kernel at all\n"), "no entry for the running kernel"),
        ((("grub-mkconfig",), 0, grub_cfg(GOOD_KERNEL)), "no entry for the running kernel"),
        ((("grub-probe",), 1, ""), "grub-probe"),
    ],
)
def test_what_stops_it_is_told_before_anything_is_changed(
    tmp_path: Path, rule: tuple[tuple[str, ...], int, str], text: str
) -> None:
    box = box_of(tmp_path)
    words, code, stdout = rule
    box.on(*words, rc=code, stdout=stdout, stderr="Found linux image: /boot/x\n")
    with pytest.raises(Refused, match=text) as refusal:
        kernel_foresight.demand(box.host, decision(), menu=True)
    assert refusal.value.remedy
    assert not [argv for argv in box.ran("apt-get") if not {"-s", "update", "download"} & set(argv)]


def test_little_space_and_a_menu_without_the_running_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = box_of(tmp_path)
    box.file("/boot/grub/grub.cfg", grub_cfg(GOOD_KERNEL))
    with pytest.raises(Refused, match="no entry for the running kernel"):
        kernel_foresight.demand(box.host, decision(), menu=False)
    box.write_menu()
    monkeypatch.setattr(disk, "free_bytes", lambda _host, _path: 1)
    with pytest.raises(Refused, match="/boot has 0 MiB free"):
        kernel_foresight.demand(box.host, decision(), menu=False)
