# SPDX-License-Identifier: Apache-2.0
"""The dkms side of the driver layer: versions of one build, kernels they build on, what is left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from amd_repository import (
    FINGERPRINT,
    KEY,
    KEY_FILE,
    LIST,
    NEW,
    NEW_FIRMWARE,
    OK,
    OLD_INSTALLED,
    SERVED,
    box_of,
    installed,
    planned,
    repository,
    request,
)
from driver_box import Box, dirty, names
from trees import GOOD_KERNEL, OLD_KERNEL

from lemonade_deploy.domain import (
    apt_formats,
    apt_keys,
    driver_plan,
    driver_sources,
    driver_state,
    driver_switch,
    paths,
)
from lemonade_deploy.domain.change import apply_all
from lemonade_deploy.domain.driver_sources import Request
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.refusal import Refused


def test_the_source_is_switched_and_firmware_of_the_same_build_chosen(tmp_path: Path) -> None:
    box = box_of(tmp_path)
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
    assert "--allow-downgrades" in install, "dpkg takes the installed firmware for the newer one"
    assert ("dpkg", "--compare-versions", OLD_INSTALLED, "gt", NEW_FIRMWARE) in box.commands


def test_only_firmware_that_would_go_back_may_be_downgraded(tmp_path: Path) -> None:
    box = box_of(tmp_path).on("dpkg", "--compare-versions", rc=1)
    _wish, changes = planned(box)
    apply_all(changes, box.host)
    assert not any("--allow-downgrades" in argv for argv in box.ran("apt-get"))


def test_a_later_repository_stays_unless_exact(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    for version in ("31.40", "latest"):
        box.amd_source(version)
        assert driver_sources.plan(box.host, request()).texts == {}
        assert list(driver_sources.plan(box.host, request(exact=True)).texts.values()) == [
            str(box.text(LIST)).replace(version, "31.20")
        ]


def test_a_missing_source_is_written_with_the_key_inside(tmp_path: Path) -> None:
    box = Box(tmp_path).distribution().dpkg({}).serve(SERVED)
    sources = driver_sources.plan(box.host, request())
    assert sources.before == {driver_sources.NEW_SOURCE: None}
    text = sources.texts[driver_sources.NEW_SOURCE]
    (entry,) = apt_formats.parse(driver_sources.NEW_SOURCE, text)
    assert (entry.uri, entry.suite) == ("https://repo.radeon.com/amdgpu/31.20/ubuntu", "noble")
    assert apt_keys.entry_key(box.host, entry, FINGERPRINT, 0).usable
    with pytest.raises(Refused, match="amdgpu_driver_repo_key_fingerprint") as refusal:
        driver_sources.plan(box.host, Request("31.20", False, "0" * 40, GOOD_KERNEL))
    assert FINGERPRINT in refusal.value.found


# -- package versions ------------------------------------------------------------------------------


def test_driver_and_firmware_of_two_builds_are_refused(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    repository(box, firmware="1:31.20.0.0.31200000-9999999.24.04")
    with pytest.raises(Refused, match="same build 2400000"):
        driver_switch.make_wish(box.host, driver_state.read(box.host), request())


def test_another_repository_that_wins_is_refused(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    repository(box, version="30.30")
    with pytest.raises(Refused, match=r"apt would take amdgpu-dkms from .*30\.30"):
        driver_switch.make_wish(box.host, driver_state.read(box.host), request())


def test_a_kernel_that_this_dkms_does_not_build_on_is_refused(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    with pytest.raises(Refused, match=r"6\.19\.0 does not build on the kernel 7\.0\.0-31") as refusal:
        driver_switch.make_wish(box.host, driver_state.read(box.host), request(kernel=GOOD_KERNEL))
    assert "31.30 or later" in refusal.value.remedy


def test_another_kernel_that_would_make_the_installation_fail_is_refused_too(tmp_path: Path) -> None:
    box = box_of(tmp_path).link(f"/lib/modules/{GOOD_KERNEL}/build", f"/usr/src/linux-headers-{GOOD_KERNEL}")
    with pytest.raises(Refused, match="does not build on the kernel 7") as refusal:
        driver_switch.make_wish(box.host, driver_state.read(box.host), request())
    assert f"linux-headers-{GOOD_KERNEL}" in refusal.value.remedy
    box = installed(tmp_path / "converged")
    box.link(f"/lib/modules/{GOOD_KERNEL}/build", "/usr/src/x")
    driver_switch.make_wish(box.host, driver_state.read(box.host), request())


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
    box = box_of(tmp_path)
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


def test_the_own_pin_stays_with_a_driver_that_stays(tmp_path: Path) -> None:
    box = installed(tmp_path).file(paths.APT_PIN, driver_sources.REPOSITORY_PIN)
    box.remove("/etc/apt/sources.list.d/amdgpu.list")
    assert planned(box, request(version=""))[1] == []


def test_a_new_module_version_asks_for_a_reboot(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    state = driver_state.read(box.host)
    wish = driver_switch.make_wish(box.host, state, request())
    assert driver_plan.dkms_due(state, wish).reboot == ("amdgpu 6.16.13 is loaded, 6.19.0 is wanted",)


@pytest.mark.parametrize("when", ["writing", "updating"])
def test_every_file_goes_back_where_apt_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A full disk after the first file; a lock that another package manager holds for ever."""
    box = box_of(tmp_path)
    box.file(KEY_FILE, b"").serve(SERVED)
    before = {path: box.text(path) for path in (LIST, KEY_FILE, paths.APT_PIN)}
    state, changes = driver_state.read(box.host), planned(box)[1]
    assert state.pin == before[paths.APT_PIN] and changes
    written: list[str] = []

    def write(self: Host, path: str, content: bytes, *more: Any) -> None:
        if when == "writing" and path == LIST and not written:
            written.append(path)
            raise OSError(28, "No space left on device")
        real(self, path, content, *more)

    def update(_host: Host) -> list[str]:
        raise TimeoutError("still held")

    real = Host.write
    monkeypatch.setattr(Host, "write", write)
    monkeypatch.setattr(driver_switch.apt, "update", update)
    with pytest.raises(OSError, match="still held" if when == "updating" else "No space"):
        apply_all(changes, box.host)
    assert {path: box.text(path) for path in before} == before


def test_a_source_keeps_its_mode_and_its_link_and_a_key_can_be_read(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    text = str(box.text(LIST))
    box.file("/etc/site/amd.list", text).remove(LIST).link(LIST, "../../site/amd.list")
    real = tmp_path / "etc/site/amd.list"
    real.chmod(0o600)
    box.file(KEY_FILE, b"").serve(SERVED)
    (tmp_path / KEY_FILE.lstrip("/")).chmod(0o600)
    apply_all(planned(box)[1], box.host)
    assert "amdgpu/31.20/ubuntu" in real.read_text() and real.stat().st_mode & 0o7777 == 0o600
    assert box.host.readlink(LIST) == "../../site/amd.list"
    assert (tmp_path / KEY_FILE.lstrip("/")).stat().st_mode & 0o7777 == 0o644, "apt reads it as _apt"


@pytest.mark.parametrize("version", ["31.2x", "v31.20", "31..20", "٣١.20"])
def test_a_version_that_is_none_is_refused_by_the_layer_itself(tmp_path: Path, version: str) -> None:
    with pytest.raises(Refused, match="amdgpu_driver_repo_version"):
        planned(box_of(tmp_path), request(version))


def test_a_key_with_other_letters_is_refused(tmp_path: Path) -> None:
    key = KEY.replace(b"-----\n", "-----\nComment: Müller\n".encode(), 1)
    box = box_of(tmp_path).remove(LIST)
    box.serve({**SERVED, driver_sources.KEY_URL: key})
    with pytest.raises(Refused, match="no plain text"):
        planned(box)


@pytest.mark.parametrize(
    ("gone", "left"),
    [("", ["admins.bin"]), ("site", ["admins.bin", "amds.bin"])],
)
def test_only_firmware_of_amds_packages_goes(tmp_path: Path, gone: str, left: list[str]) -> None:
    box = (
        dirty(tmp_path).file(f"{driver_state.FIRMWARE}/admins.bin").file(f"{driver_state.FIRMWARE}/amds.bin")
    )
    listing = f"/var/lib/dpkg/info/{gone or 'amdgpu-dkms-firmware'}.list"
    box.file(listing, f"/usr{driver_state.FIRMWARE}/amds.bin\n")

    def purged(_argv: Sequence[str], _env: Mapping[str, str]) -> None:
        box.dpkg({}).remove(listing)

    box.on("apt-get", "purge", do=purged)
    apply_all(driver_plan.plan_intree(driver_state.read(box.host)), box.host)
    assert box.host.listdir(driver_state.FIRMWARE) == left
    state = driver_state.read(box.host)
    assert not state.firmware and driver_plan.plan_intree(state) == []
