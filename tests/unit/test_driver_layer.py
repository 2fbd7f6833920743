# SPDX-License-Identifier: Apache-2.0
"""The driver layer: repair, purge that finishes, switch that goes back."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from driver_box import Box
from trees import GOOD_KERNEL, OLD_KERNEL, Tree

from lemonade_deploy.domain import (
    apt_formats,
    apt_keys,
    driver_plan,
    driver_purge,
    driver_state,
    driver_switch,
    openpgp,
    paths,
)
from lemonade_deploy.domain.change import Change, apply_all
from lemonade_deploy.domain.driver_switch import Request
from lemonade_deploy.domain.host import CommandFailed, Completed
from lemonade_deploy.domain.module import Refused

OK = "install ok installed"
NEW = "1:6.19.0.31200000-2400000.24.04"
NEW_FIRMWARE = "1:31.20.0.0.31200000-2400000.24.04"
OLD_FIRMWARE_EPOCH = "1:6.12.12.60404-2202139.24.04"


def names(changes: Sequence[Change]) -> list[tuple[str, str]]:
    return [(change.object, change.action) for change in changes]


def purge_packages(box: Box) -> None:
    """dpkg's and AMD's part of a purge."""

    def gone(_argv: Sequence[str], _env: Mapping[str, str]) -> None:
        box.dpkg({})

    box.on("apt-get", "purge", do=gone)
    box.on("apt-get", "-s", "purge", stdout="Purg amdgpu-dkms [1]\nPurg amdgpu-dkms-firmware [1]\n")


def dirty(tmp_path: Path) -> Box:
    box = Box(tmp_path)
    box.kernel(OLD_KERNEL).loaded("dkms", OLD_KERNEL).module(OLD_KERNEL, "dkms").module(OLD_KERNEL, "in-tree")
    box.dkms(built=[OLD_KERNEL]).dkms_packages().amd_source().distribution().file(driver_state.HOOK)
    purge_packages(box)
    return box


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
    with pytest.raises(CommandFailed, match="dependency"):
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


# -- dkms ------------------------------------------------------------------------------------------


def repository(box: Box, version: str = "31.20", firmware: str = NEW_FIRMWARE) -> None:
    """What apt sees of AMD's repository."""
    stanza = "Package: {}\nVersion: {}\nArchitecture: all\n\n"
    known = stanza.format("amdgpu-dkms", NEW)
    fw = "".join(stanza.format("amdgpu-dkms-firmware", text) for text in (OLD_FIRMWARE_EPOCH, firmware))
    name = f"amdgpu-dkms_{NEW.replace(':', '%3a')}_all.deb"
    uri = f"'https://repo.radeon.com/amdgpu/{version}/ubuntu/pool/a.deb' {name} 1 x\n"
    box.on("apt-cache", "show", "amdgpu-dkms", stdout=known)
    box.on("apt-cache", "--all-versions", "amdgpu-dkms-firmware", stdout=fw)
    box.on("apt-get", "--print-uris", stdout=uri)


def request(version: str = "31.20", exact: bool = False, kernel: str = "6.18.20-061820-generic") -> Request:
    return Request(version, exact, "0" * 40, kernel)


def test_the_source_is_switched_and_firmware_of_the_same_build_chosen(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    repository(box)
    state = driver_state.read(box.host)
    wish = driver_switch.make_wish(box.host, state, request())
    assert (wish.dkms, wish.firmware, wish.module) == (NEW, NEW_FIRMWARE, "6.19.0")
    assert wish.headers is None, "the target kernel brings its own"
    changes = driver_plan.plan_dkms(state, wish, driver_switch.steps(wish))
    assert names(changes) == [
        ("apt source /etc/apt/sources.list.d/amdgpu.list", "switch"),
        ("package amdgpu-dkms", "upgrade"),
        ("package amdgpu-dkms-firmware", "upgrade"),
    ]
    apply_all(changes, box.host)
    assert "amdgpu/31.20/ubuntu noble main" in str(box.text("/etc/apt/sources.list.d/amdgpu.list"))
    install = next(argv for argv in box.ran("apt-get") if "install" in argv)
    assert f"amdgpu-dkms={NEW}" in install
    assert f"amdgpu-dkms-firmware={NEW_FIRMWARE}" in install
    assert "--allow-downgrades" in install


def test_a_later_repository_stays_unless_exact(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    for version in ("31.40", "latest"):
        box.amd_source(version)
        assert driver_switch.plan_sources(box.host, request())[0] == {}
        assert list(driver_switch.plan_sources(box.host, request(exact=True))[0].values()) == [
            str(box.text("/etc/apt/sources.list.d/amdgpu.list")).replace(version, "31.20")
        ]


def answer(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    opener = SimpleNamespace(open=lambda _url, timeout: io.BytesIO(data))
    monkeypatch.setattr(driver_switch.urllib.request, "build_opener", lambda: opener)


def test_a_missing_source_is_written_with_the_key_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = (Path(__file__).parent / "fixtures" / "test-key.asc").read_bytes()
    fingerprint = openpgp.read_keys(key)[0].fingerprint
    answer(monkeypatch, key)
    box = Box(tmp_path).distribution().dpkg({})
    wanted = Request("31.20", False, fingerprint, GOOD_KERNEL)
    planned, before = driver_switch.plan_sources(box.host, wanted)
    assert before == {driver_switch.NEW_SOURCE: None}
    text = planned[driver_switch.NEW_SOURCE]
    (entry,) = apt_formats.parse(driver_switch.NEW_SOURCE, text)
    assert (entry.uri, entry.suite) == ("https://repo.radeon.com/amdgpu/31.20/ubuntu", "noble")
    assert apt_keys.entry_key(box.host, entry, fingerprint, 0).usable
    answer(monkeypatch, key)
    with pytest.raises(Refused, match="amdgpu_driver_repo_key_fingerprint"):
        driver_switch.plan_sources(box.host, Request("31.20", False, "0" * 40, GOOD_KERNEL))


def test_our_pin_is_lifted_for_planning_and_for_good(tmp_path: Path) -> None:
    box = dirty(tmp_path).file(paths.APT_PIN, driver_plan.PIN_AWAY)
    repository(box)
    state = driver_state.read(box.host)
    wish = driver_switch.make_wish(box.host, state, request())
    changes = driver_plan.plan_dkms(state, wish, driver_switch.steps(wish))
    assert ("apt pin amdgpu-dkms", "remove") in names(changes)
    apply_all(changes, box.host)
    assert not box.host.exists(paths.APT_PIN)


def test_where_the_update_fails_every_file_goes_back(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    repository(box)
    wish = driver_switch.make_wish(box.host, driver_state.read(box.host), request())
    before = box.text("/etc/apt/sources.list.d/amdgpu.list")
    told = "E: Failed to fetch https://repo.radeon.com/amdgpu/31.20/ubuntu/dists/noble/InRelease 404\n"
    box.on("apt-get", "update", rc=100, stderr="E: Failed to fetch http://other/x\n" + told)
    with pytest.raises(Refused, match=r"went back.*InRelease 404") as refusal:
        driver_switch.switch(box.host, wish)
    assert "http://other/x" not in refusal.value.found
    assert box.text("/etc/apt/sources.list.d/amdgpu.list") == before


def test_trouble_of_another_source_does_not_stop_the_switch(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    repository(box)
    wish = driver_switch.make_wish(box.host, driver_state.read(box.host), request())
    box.on("apt-get", "update", rc=100, stderr="E: Failed to fetch http://other/x\n")
    driver_switch.switch(box.host, wish)
    assert "31.20" in str(box.text("/etc/apt/sources.list.d/amdgpu.list"))


def test_a_repository_that_answers_404_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    box.on(
        "apt-get",
        "update",
        rc=100,
        stderr="E: The repository 'https://repo.radeon.com/amdgpu/31.20/ubuntu noble' has no Release.\n",
    )
    before = box.snapshot()
    with pytest.raises(Refused, match=r"offers no amdgpu-dkms: E: The repository"):
        driver_switch.make_wish(box.host, driver_state.read(box.host), request())
    after = box.snapshot()
    after.pop(str(tmp_path / "tmp"))
    assert after == before


def test_driver_and_firmware_of_two_builds_are_refused(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    repository(box, firmware="1:31.20.0.0.31200000-9999999.24.04")
    with pytest.raises(Refused, match="same build 2400000"):
        driver_switch.make_wish(box.host, driver_state.read(box.host), request())


def test_another_repository_that_wins_is_refused(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    repository(box, version="30.30")
    with pytest.raises(Refused, match=r"apt would take amdgpu-dkms from .*30\.30"):
        driver_switch.make_wish(box.host, driver_state.read(box.host), request())


def test_a_kernel_that_this_dkms_does_not_build_on_is_refused(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    repository(box)
    with pytest.raises(Refused, match=r"6\.19\.0 does not build on the kernel 7\.0\.0-31") as refusal:
        driver_switch.make_wish(box.host, driver_state.read(box.host), request(kernel=GOOD_KERNEL))
    assert "31.30 or later" in refusal.value.remedy


def test_another_kernel_that_would_make_the_installation_fail_is_refused_too(tmp_path: Path) -> None:
    box = dirty(tmp_path).link(f"/lib/modules/{GOOD_KERNEL}/build", f"/usr/src/linux-headers-{GOOD_KERNEL}")
    repository(box)
    with pytest.raises(Refused, match="does not build on the kernel 7") as refusal:
        driver_switch.make_wish(box.host, driver_state.read(box.host), request())
    assert f"linux-headers-{GOOD_KERNEL}" in refusal.value.remedy
    box = installed(tmp_path / "converged")
    box.link(f"/lib/modules/{GOOD_KERNEL}/build", "/usr/src/x")
    driver_switch.make_wish(box.host, driver_state.read(box.host), request())


def installed(tmp_path: Path) -> Box:
    box = Box(tmp_path)
    box.kernel("6.18.20-061820-generic").loaded("dkms", "x", "6.19.0").amd_source("31.20").distribution()
    box.module("6.18.20-061820-generic", "dkms")
    box.dpkg(
        {
            "amdgpu-dkms": (NEW, OK),
            "amdgpu-dkms-firmware": (NEW_FIRMWARE, OK),
            "linux-headers-6.18.20-061820-generic": ("1", OK),
        }
    )
    return box


def test_a_converged_dkms_box_asks_no_server_and_changes_nothing(tmp_path: Path) -> None:
    box = installed(tmp_path)
    state = driver_state.read(box.host)
    wish = driver_switch.make_wish(box.host, state, request())
    assert driver_plan.plan_dkms(state, wish, driver_switch.steps(wish)) == []
    assert not driver_plan.dkms_due(state, wish)
    assert not [argv for argv in box.commands if "update" in argv]


def test_headers_of_a_kernel_that_stays_come_along(tmp_path: Path) -> None:
    box = installed(tmp_path).dpkg({"amdgpu-dkms": (NEW, OK), "amdgpu-dkms-firmware": (NEW_FIRMWARE, OK)})
    state = driver_state.read(box.host)
    wish = driver_switch.make_wish(box.host, state, request())
    assert names(driver_plan.plan_dkms(state, wish, driver_switch.steps(wish))) == [
        ("kernel headers", "install")
    ]


def test_a_failed_build_never_leaves_the_blacklist(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    repository(box)
    wish = driver_switch.make_wish(box.host, driver_state.read(box.host), request())

    def fails(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
        box.file(driver_state.BLACKLIST, "blacklist amdgpu\n")
        return Completed(tuple(argv), 100, "", "E: Sub-process /usr/bin/dpkg returned an error code (1)")

    box.on("apt-get", "install", do=fails).dkms(version="6.19.0-2400000.24.04", failed=OLD_KERNEL)
    with pytest.raises(Refused, match=r"did not install.*make\.log: kcl\.c:1: error: no"):
        driver_switch.install(box.host, wish)
    assert not box.host.exists(driver_state.BLACKLIST)


def test_a_driver_that_was_not_built_for_the_kernel_is_refused(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    with pytest.raises(Refused, match=r"did not build amdgpu for kernel 6\.18"):
        driver_switch.demand_built(box.host, "6.18.20-061820-generic")
    assert ("dkms", "autoinstall", "-k", "6.18.20-061820-generic") in box.commands


def test_without_a_repository_a_working_driver_stays(tmp_path: Path) -> None:
    box = installed(tmp_path)
    box.remove("/etc/apt/sources.list.d/amdgpu.list")
    state = driver_state.read(box.host)
    wish = driver_switch.make_wish(box.host, state, request(version=""))
    assert driver_plan.plan_dkms(state, wish, driver_switch.steps(wish)) == []


def test_a_new_module_version_asks_for_a_reboot(tmp_path: Path) -> None:
    box = dirty(tmp_path)
    repository(box)
    state = driver_state.read(box.host)
    wish = driver_switch.make_wish(box.host, state, request())
    assert driver_plan.dkms_due(state, wish).reboot == ("amdgpu 6.16.13 is loaded, 6.19.0 is wanted",)
