# SPDX-License-Identifier: Apache-2.0
"""AMD's sources: key, pin, a probe before anything is written, everything back on failure."""

from __future__ import annotations

from pathlib import Path

import pytest
from amd_repository import (
    FINGERPRINT,
    KEY,
    KEY_FILE,
    LIST,
    PIN_FILE,
    PROBED,
    SERVED,
    box_of,
    installed,
    planned,
    request,
    untouched,
)
from driver_box import Box, names
from trees import AMD_LINE, GOOD_KERNEL

from lemonade_deploy.domain import (
    apt_formats,
    apt_sources,
    driver_plan,
    driver_sources,
    driver_state,
    driver_switch,
    openpgp,
    paths,
)
from lemonade_deploy.domain.change import apply_all
from lemonade_deploy.domain.driver_sources import Request
from lemonade_deploy.domain.refusal import Refused

# -- key -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rocm.gpg", "rocm.asc"])
@pytest.mark.parametrize("old", [None, b"<html>404</html>"], ids=["missing", "damaged"])
def test_a_key_that_apt_cannot_use_is_fetched_again(tmp_path: Path, name: str, old: bytes | None) -> None:
    box = box_of(tmp_path)
    box.remove(KEY_FILE)
    path = f"/etc/apt/keyrings/{name}"
    if old is not None:
        box.file(path, old)
    box.file(LIST, AMD_LINE.format("31.20").replace(KEY_FILE, path))
    _wish, changes = planned(box)
    assert names(changes)[0] == (f"apt key {path}", "refresh")
    apply_all(changes, box.host)
    data = box.host.read_bytes(path) or b""
    assert data == (openpgp.dearmor(KEY) if name.endswith(".gpg") else KEY), "in the form its name promises"
    assert not [change for change in planned(box)[1] if change.object.startswith("apt key")]


def test_a_mirror_of_all_of_amds_tree_brings_the_key_too(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    box.remove(KEY_FILE)
    box.file(LIST, AMD_LINE.format("31.20").replace("repo.radeon.com", "mirror.lan/amd"))
    box.serve({"https://mirror.lan/amd/rocm/rocm.gpg.key": KEY})
    assert driver_sources.plan(box.host, request()).keys == {KEY_FILE: openpgp.dearmor(KEY)}


def test_an_expired_key_is_refreshed_by_its_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = box_of(tmp_path)
    real = openpgp.read_keys
    old = openpgp.dearmor(KEY) + b""

    def ended(data: bytes) -> list[openpgp.Key]:
        return [key._replace(expires=1) if data == old else key for key in real(data)]

    monkeypatch.setattr(openpgp, "read_keys", ended)
    assert driver_sources.plan(box.host, request()).keys == {KEY_FILE: old}


def test_a_key_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    wanted = Request("31.20", False, "0" * 40, GOOD_KERNEL)
    before = box.snapshot()
    with pytest.raises(Refused, match=f"holds {FINGERPRINT}") as refusal:
        driver_switch.make_wish(box.host, driver_state.read(box.host), wanted)
    assert "amdgpu_driver_repo_key_fingerprint" in refusal.value.remedy
    assert untouched(box, before)


def test_a_box_that_needs_nothing_of_the_repository_is_not_stopped_for_its_key(tmp_path: Path) -> None:
    box = installed(tmp_path).serve({})
    box.remove(KEY_FILE)
    assert planned(box)[1] == []


# -- pin -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken", [None, "Package: *\\nPin: release o=repo.radeon.com\\nPin-Priority: 600\n"]
)
def test_a_pin_that_is_missing_or_does_nothing_is_written(tmp_path: Path, broken: str | None) -> None:
    box = box_of(tmp_path)
    if broken is None:
        box.remove(PIN_FILE)
    else:
        box.file(PIN_FILE, broken)
    _wish, changes = planned(box)
    assert names(changes)[0] == ("apt pin repo.radeon.com", "write")
    apply_all(changes, box.host)
    assert box.text(paths.APT_PIN) == driver_sources.REPOSITORY_PIN
    assert ("apt pin repo.radeon.com", "write") not in names(planned(box)[1])


def test_the_own_pin_that_keeps_amd_away_becomes_the_one_that_prefers_it(tmp_path: Path) -> None:
    box = box_of(tmp_path).file(paths.APT_PIN, driver_plan.PIN_AWAY)
    box.remove(PIN_FILE)
    _wish, changes = planned(box)
    assert names(changes)[:2] == [("apt pin amdgpu-dkms", "remove"), ("apt pin repo.radeon.com", "write")]
    apply_all(changes, box.host)
    assert box.text(paths.APT_PIN) == driver_sources.REPOSITORY_PIN


def test_our_pin_is_lifted_for_planning_and_for_good(tmp_path: Path) -> None:
    box = box_of(tmp_path).file(paths.APT_PIN, driver_plan.PIN_AWAY)
    state = driver_state.read(box.host)
    wish = driver_switch.make_wish(box.host, state, request())
    changes = driver_plan.plan_dkms(state, wish, driver_switch.steps(wish))
    assert ("apt pin amdgpu-dkms", "remove") in names(changes)
    apply_all(changes, box.host)
    assert not box.host.exists(paths.APT_PIN)


# -- probe and way back ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "remedy"),
    [
        ("404  Not Found [IP: 192.0.2.1 443]", "no such version or suite"),
        (
            "Certificate verification failed: The certificate is NOT trusted. The certificate issuer is "
            "unknown.  Could not handshake: Error in the certificate verification.",
            "certificate is not trusted",
        ),
        ("Could not resolve 'repo.radeon.com'", "no way to that server"),
        ("Could not connect to 192.0.2.1:443. - connect (111: Connection refused)", "no way to that server"),
        ("407  Proxy Authentication Required", "wants a login"),
        ("503  Service Unavailable", "in trouble"),
    ],
)
def test_a_server_that_does_not_answer_is_told_as_that_before_anything_is_written(
    tmp_path: Path, trouble: str, remedy: str
) -> None:
    box = box_of(tmp_path).serve({}, trouble)
    before = box.snapshot()
    with pytest.raises(Refused) as refusal:
        planned(box)
    assert PROBED in refusal.value.found
    assert trouble in refusal.value.found
    assert "offers no" not in refusal.value.found
    assert remedy in refusal.value.remedy
    assert untouched(box, before)
    assert not [argv for argv in box.commands if "update" in argv]


def test_an_update_that_fails_on_the_private_copy_is_a_refusal(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    told = "W: GPG error: https://repo.radeon.com/amdgpu/31.20/ubuntu noble InRelease: EXPKEYSIG 9386B48A"
    box.on("apt-get", "update", rc=100, stderr=told + "\n")
    before = box.snapshot()
    with pytest.raises(Refused, match=r"cannot use AMD's repository.*EXPKEYSIG") as refusal:
        planned(box)
    assert "key" in refusal.value.remedy
    assert untouched(box, before)


def test_where_the_update_fails_every_file_goes_back(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    box.remove(KEY_FILE)
    box.remove(PIN_FILE)
    (tmp_path / LIST[1:]).chmod(0o640)
    wish, _changes = planned(box)
    before = box.snapshot()
    told = "E: Failed to fetch https://repo.radeon.com/amdgpu/31.20/ubuntu/dists/noble/InRelease 404\n"
    box.on("apt-get", "update", rc=100, stderr="E: Failed to fetch http://other/x\n" + told)
    with pytest.raises(Refused, match=r"went back.*InRelease 404") as refusal:
        driver_switch.switch(box.host, wish)
    assert "http://other/x" not in refusal.value.found
    assert untouched(box, before)


def test_a_repository_that_does_not_win_after_all_goes_back(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    wish, _changes = planned(box)
    before = box.snapshot()
    other = "Package: amdgpu-dkms\nVersion: 9:1\nArchitecture: all\n\n"
    box.on("apt-cache", "show", "amdgpu-dkms", stdout=other)
    box.on("apt-get", "--print-uris", stdout="'http://other/a.deb' amdgpu-dkms_9%3a1_all.deb 1 x\n")
    with pytest.raises(Refused, match=r"candidate for amdgpu-dkms is 9:1 from http://other/a\.deb"):
        driver_switch.switch(box.host, wish)
    assert untouched(box, before)


def test_trouble_of_another_source_does_not_stop_the_switch(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    wish, _changes = planned(box)
    box.on("apt-get", "update", rc=100, stderr="E: Failed to fetch http://other/x\n")
    driver_switch.switch(box.host, wish)
    assert "31.20" in str(box.text(LIST))


# -- what is unclear -------------------------------------------------------------------------------


def test_a_suite_of_another_release_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    box = box_of(tmp_path).file(LIST, AMD_LINE.format("30.30").replace("noble", "jammy"))
    before = box.snapshot()
    with pytest.raises(Refused, match=r"amdgpu\.list line 1 .*jammy.*needs noble") as refusal:
        planned(box)
    assert "change jammy to noble" in refusal.value.remedy
    assert untouched(box, before)


def test_an_entry_that_is_there_twice_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    line = AMD_LINE.format("31.20")
    box = box_of(tmp_path).file("/etc/apt/sources.list.d/rocm.list", f"# x\n{line}")
    with pytest.raises(Refused, match=r"amdgpu\.list line 1 .*rocm\.list line 2") as refusal:
        planned(box)
    assert "rocm.list line 2" in refusal.value.remedy


def test_one_entry_for_each_architecture_is_none_twice(tmp_path: Path) -> None:
    text = AMD_LINE.format("31.20").replace("amd64,i386", "{}")
    found = apt_formats.parse(LIST, text.format("amd64") + text.format("i386"))
    assert apt_sources.duplicates(found) == []
    assert len(apt_sources.duplicates(apt_formats.parse(LIST, text.format("amd64") * 2))) == 2


def test_without_apt_it_says_so(tmp_path: Path) -> None:
    box = Box(tmp_path).distribution("fedora", "43", "")
    with pytest.raises(Refused, match="fedora 43 has no apt") as refusal:
        planned(box)
    assert "intree" in refusal.value.remedy


OTHERS = (
    "deb https://repo.radeon.com/rocm/apt/7.2 noble main\n"
    "deb https://repo.radeon.com/graphics/7.2/ubuntu noble main\n"
    "deb https://repo.radeon.com/amdgpu/7.2/ubuntu noble proprietary\n"
    "# deb https://repo.radeon.com/amdgpu/30.10/ubuntu noble main\n"
)


def test_other_entries_of_amds_stay_and_are_named(tmp_path: Path) -> None:
    box = box_of(tmp_path).file("/etc/apt/sources.list.d/rocm.list", OTHERS)
    _wish, changes = planned(box)
    apply_all(changes, box.host)
    assert box.text("/etc/apt/sources.list.d/rocm.list") == OTHERS
    assert [entry.line for entry in driver_sources.left_alone(box.host)] == [1, 2, 3, 4]


def test_a_source_that_is_trusted_as_it_is_needs_no_key(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    box.remove(KEY_FILE)
    box.file(LIST, "deb [trusted=yes] https://mirror.lan/amdgpu/30.30/ubuntu noble main\n")
    sources = driver_sources.plan(box.host, request())
    assert (sources.keys, sources.refusal) == ({}, None)
    stanza = "Types: deb\nURIs: https://mirror.lan/amdgpu/30.30/ubuntu\nSuites: noble\nComponents: main\n"
    box.remove(LIST).file("/etc/apt/sources.list.d/a.sources", f"{stanza}Trusted: yes\n")
    assert driver_sources.plan(box.host, request()).refusal is None
    box.file("/etc/apt/sources.list.d/a.sources", stanza)
    refusal = driver_sources.plan(box.host, request()).refusal
    assert refusal is not None and "signed-by=" in refusal.remedy


def test_a_derivative_takes_ubuntus_suite(tmp_path: Path) -> None:
    box = Box(tmp_path).dpkg({}).serve(SERVED)
    box.file(
        "/etc/os-release", 'ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="22"\nUBUNTU_CODENAME=noble\n'
    )
    assert "Suites: noble" in driver_sources.plan(box.host, request()).texts[driver_sources.NEW_SOURCE]
