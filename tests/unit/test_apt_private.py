# SPDX-License-Identifier: Apache-2.0
"""Planning with apt on a private copy, and waiting for the real one's locks."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from driver_box import Box
from trees import AMD_LINE

from lemonade_deploy.domain import apt, apt_plan
from lemonade_deploy.domain.host import CommandFailed, Completed

SIMULATION = """\
Reading package lists...
Inst linux-image-7.0.0-31-generic (7.0.0-31.31 Ubuntu:24.04/noble [amd64])
Inst libc6:i386 [2.39] (2.40 Ubuntu:24.04/noble [i386])
Remv amdgpu [30.30]
Purg amdgpu-dkms:amd64 [1:6.16.13]
Conf linux-image-7.0.0-31-generic (7.0.0-31.31 Ubuntu:24.04/noble [amd64])
"""
SHOWN = """\
Package: amdgpu-dkms
Version: 1:6.19.0.31200000-2400000.24.04
Architecture: all
Depends: dkms (>= 1.95), amdgpu-dkms-firmware
Description: driver
 Package: not-a-field

Package: provider
Version: 1
"""
URIS = (
    "'https://repo.radeon.com/amdgpu/31.20/ubuntu/pool/main/a/a.deb' "
    "amdgpu-dkms_1%3a6.19.0.31200000-2400000.24.04_all.deb 12 SHA256:00\n"
)


def box(tmp_path: Path) -> Box:
    made = Box(tmp_path)
    made.file("/etc/apt/sources.list", "deb http://archive.ubuntu.com/ubuntu noble main\n")
    made.file("/etc/apt/sources.list.d/amdgpu.list", AMD_LINE.format("30.30"))
    made.file("/etc/apt/sources.list.d/amdgpu.list.save", AMD_LINE.format("7.2"))
    made.file("/etc/apt/preferences.d/pin", "Package: x\nPin: version *\nPin-Priority: 1\n")
    made.file("/var/lib/apt/lists/archive_Packages", "Package: x\n").file("/var/lib/apt/lists/lock")
    return made


def test_simulations_give_names_without_architecture() -> None:
    found = apt_plan.parse_simulation(SIMULATION)
    assert found.install == ("libc6", "linux-image-7.0.0-31-generic")
    assert found.remove == ("amdgpu", "amdgpu-dkms")


def test_candidate_joins_version_uri_and_depends(tmp_path: Path) -> None:
    made = box(tmp_path).on("apt-cache", "show", stdout=SHOWN).on("apt-get", "--print-uris", stdout=URIS)
    with apt.PrivateApt(made.host) as private:
        found = private.candidate("amdgpu-dkms")
    assert found is not None
    assert found.version == "1:6.19.0.31200000-2400000.24.04"
    assert found.uri.startswith("https://repo.radeon.com/amdgpu/31.20/ubuntu/")
    assert found.depends == "dkms (>= 1.95), amdgpu-dkms-firmware"


def test_a_virtual_package_is_no_candidate_under_its_own_name(tmp_path: Path) -> None:
    made = box(tmp_path).on("apt-cache", "show", stdout=SHOWN)
    with apt.PrivateApt(made.host) as private:
        assert private.candidate("virtual") is None


def test_one_package_without_a_source_does_not_spoil_the_uris_of_others(tmp_path: Path) -> None:
    def uris(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
        failed = any(word.startswith("provider=") for word in argv)
        return Completed(tuple(argv), 100 if failed else 0, "" if failed else URIS, "")

    made = box(tmp_path).on("apt-cache", "show", stdout=SHOWN).on("apt-get", "--print-uris", do=uris)
    with apt.PrivateApt(made.host) as private:
        found = private.candidates(["amdgpu-dkms", "provider"])
    assert found["amdgpu-dkms"].uri
    assert found["provider"].uri == ""


def peek(made: Box, seen: dict[str, str]) -> None:
    """Note the private files at each command, by their name below the private folder."""

    def look(argv: Sequence[str], _env: Mapping[str, str]) -> None:
        conf = argv[argv.index("-c") + 1]
        folder = made.root / os.path.dirname(conf).lstrip("/")
        for path in folder.rglob("*"):
            if path.is_file():
                seen[str(path.relative_to(folder))] = path.read_text()

    made.on("-c", do=look)


def test_planned_files_replace_the_hosts_and_amd_is_left_out(tmp_path: Path) -> None:
    made, seen = box(tmp_path), {}
    peek(made, seen)
    planned = {"/etc/apt/preferences.d/pin": "", "/etc/apt/sources.list.d/new.sources": "Types: deb\n"}
    before = made.snapshot()
    with apt.PrivateApt(made.host, sources=planned) as private:
        assert private.update() == []
    assert seen["sources.list"].startswith("deb http://archive")
    assert seen["sources.list.d/amdgpu.list"] == ""
    assert seen["sources.list.d/new.sources"] == "Types: deb\n"
    assert seen["preferences.d/pin"] == ""
    assert "sources.list.d/amdgpu.list.save" not in seen
    assert seen["lists/archive_Packages"] == "Package: x\n"
    lists = re.search(r'Dir::State::lists "(.*)"', seen["apt.conf"])
    assert lists is not None and lists[1].startswith("/tmp/lemonade-deploy-apt-")
    after = made.snapshot()
    after.pop(str(tmp_path / "tmp"))
    assert after == before, "nothing is left, nothing else was touched"


def test_amds_entries_stay_where_they_are_asked_for(tmp_path: Path) -> None:
    made, seen = box(tmp_path), {}
    peek(made, seen)
    with apt.PrivateApt(made.host, skip_amd=False) as private:
        private.names("linux-")
    assert seen["sources.list.d/amdgpu.list"] == AMD_LINE.format("30.30")


@pytest.mark.parametrize(
    ("path", "text", "left"),
    [
        ("/a.list", AMD_LINE.format("30.30") + "deb http://x noble main\n", "deb http://x noble main\n"),
        ("/a.list", "deb http://mirror/pub/amdgpu/30.30/ubuntu noble main\n", ""),
        (
            "/a.sources",
            "Types: deb\nURIs: http://x\nSuites: n\nComponents: main\n\n"
            "Types: deb\nURIs: https://repo.radeon.com/rocm/apt/7.2\nSuites: n\nComponents: main\n",
            "Types: deb\nURIs: http://x\nSuites: n\nComponents: main\n\n",
        ),
    ],
)
def test_only_amds_lines_and_stanzas_are_left_out(path: str, text: str, left: str) -> None:
    assert apt_plan.without_amd(path, text) == left


def test_an_update_that_fails_is_told_in_apts_words(tmp_path: Path) -> None:
    told = "W: noise\nE: The repository 'https://x Release' does not have a Release file.\nother\n"
    made = box(tmp_path).on("apt-get", "update", rc=100, stderr=told)
    with apt.PrivateApt(made.host) as private:
        assert private.update() == [
            "W: noise",
            "E: The repository 'https://x Release' does not have a Release file.",
        ]


def test_a_simulation_that_apt_refuses_is_an_error(tmp_path: Path) -> None:
    made = box(tmp_path).on("apt-get", "-s", rc=100, stderr="E: Unmet dependencies.")
    with apt.PrivateApt(made.host) as private, pytest.raises(CommandFailed, match="Unmet"):
        private.simulate_purge(["x"])


def test_a_held_lock_is_waited_for_and_left_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = box(tmp_path).file("/var/lib/dpkg/lock-frontend")
    path = tmp_path / "var/lib/dpkg/lock-frontend"
    (reading, writing), (asked, asking) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # another package manager: fcntl locks count between processes only
        with path.open("r+") as stream:
            fcntl.lockf(stream, fcntl.LOCK_EX)
            os.write(writing, b"x")
            os.read(asked, 1)
        os._exit(0)
    os.read(reading, 1)
    let_go = iter([True])

    def sleep(_seconds: float) -> None:  # it is waited: the other one is to let go
        if next(let_go, False):
            os.write(asking, b"x")
        rest(0.01)

    rest = time.sleep
    monkeypatch.setattr(time, "sleep", sleep)
    try:
        with pytest.raises(TimeoutError, match="lock-frontend"):
            apt.wait_for_locks(made.host, timeout=-1)
        apt.wait_for_locks(made.host, timeout=60)
    finally:
        os.write(asking, b"x")
        os.waitpid(child, 0)
    assert path.exists()


def test_the_real_apt_waits_for_locks_keeps_configuration_and_never_asks(tmp_path: Path) -> None:
    made = box(tmp_path)
    apt.apt_get(made.host, "install", "x", path="/hold:/usr/bin")
    argv = " ".join(made.commands[-1])
    assert "DPkg::Lock::Timeout=600" in argv
    assert "--force-confold" in argv
    assert "DPkg::Path=/hold:/usr/bin" in argv
    assert argv.startswith("apt-get -qy ")


def test_copied_sources_can_be_read_by_nobody_else(tmp_path: Path) -> None:
    """Their folder is open, as apt downloads as another user; a source may hold a password."""
    box = Box(tmp_path).file("/etc/apt/sources.list.d/x.list", "deb https://u:pw@m/x noble main\n")
    with apt.PrivateApt(box.host):
        (copy,) = (tmp_path / "tmp").rglob("x.list")
        assert copy.stat().st_mode & 0o7777 == 0o600


def test_a_private_state_that_cannot_be_made_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(tmp_path).file("/etc/apt/sources.list.d/x.list", "deb https://u:pw@m/x noble main\n")

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(apt.PrivateApt, "_configure", full)
    with pytest.raises(OSError, match="No space"), apt.PrivateApt(box.host):
        pass
    assert list((tmp_path / "tmp").iterdir()) == []
