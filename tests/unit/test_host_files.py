# SPDX-License-Identifier: Apache-2.0
"""Files of others that the kit writes: their mode, links, line ends; and what is shown of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from driver_box import Box
from fake_module import Module

from lemonade_deploy.domain import driver_purge, driver_state
from lemonade_deploy.domain.change import Change, WriteFile
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.refusal import fail

SECRET = "s3cr3tV4lueX9"


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_file_keeps_its_mode_a_new_one_is_readable(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/etc/a", "1")
    assert mode_of(tmp_path / "etc/a") == 0o644
    (tmp_path / "etc/a").chmod(0o640)
    host.write("/etc/a", "2")
    assert (mode_of(tmp_path / "etc/a"), host.read("/etc/a")) == (0o640, "2")
    WriteFile("/etc/a", "3").apply(host)
    assert mode_of(tmp_path / "etc/a") == 0o644, "the kit's own files have a wanted mode"


@pytest.mark.skipif(os.geteuid() != 0, reason="chown")
def test_a_file_keeps_its_owner(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/etc/a", "1", 0o600, (12345, 12346))
    host.write("/etc/a", "2")
    status = (tmp_path / "etc/a").stat()
    assert (status.st_uid, status.st_gid, mode_of(tmp_path / "etc/a")) == (12345, 12346, 0o600)


@pytest.mark.parametrize("target", ["/srv/site/amdgpu.list", "../site/amdgpu.list", "/srv/hop"])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path, target: str) -> None:
    box = Box(tmp_path).file("/srv/site/amdgpu.list", "old").file("/etc/site/amdgpu.list", "old")
    box.file("/etc/apt/x").link("/srv/hop", "site/amdgpu.list").link("/etc/apt/amdgpu.list", target)
    (tmp_path / "srv/site/amdgpu.list").chmod(0o600)
    box.host.write("/etc/apt/amdgpu.list", "new")
    assert box.host.readlink("/etc/apt/amdgpu.list") == target
    written = "/etc/site/amdgpu.list" if target.startswith("..") else "/srv/site/amdgpu.list"
    assert box.text(written) == "new"
    assert mode_of(tmp_path / written.lstrip("/")) == (0o644 if target.startswith("..") else 0o600)


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    box = Box(tmp_path).file("/etc/x").link("/etc/a", "b").link("/etc/b", "a")
    with pytest.raises(OSError, match="symbolic links"):
        box.host.write("/etc/a", "new")


@pytest.mark.skipif(os.geteuid() != 0, reason="chown")
@pytest.mark.parametrize("foreign", ["link", "folder"])
def test_a_link_that_another_user_made_is_not_followed(tmp_path: Path, foreign: str) -> None:
    box = Box(tmp_path).file("/etc/shadow", "root's").file("/home/u/x").link("/home/u/config", "/etc/shadow")
    place = tmp_path / "home/u"
    os.lchown(place / "config" if foreign == "link" else place, 12345, 12345)
    box.host.write("/home/u/config", "theirs")
    assert box.text("/etc/shadow") == "root's"
    assert not (place / "config").is_symlink() and box.text("/home/u/config") == "theirs"


def test_the_blacklist_file_keeps_its_line_ends_mode_and_link(tmp_path: Path) -> None:
    text = "# mine\r\nblacklist amdgpu\nblacklist other\r\n"
    box = Box(tmp_path).file("/srv/bl.conf", text).file("/etc/modprobe.d/x")
    box.link(driver_state.BLACKLIST, "../../srv/bl.conf")
    (tmp_path / "srv/bl.conf").chmod(0o640)
    driver_purge.lift_blacklist(box.host)
    assert box.host.read_bytes("/srv/bl.conf") == b"# mine\r\nblacklist other\r\n"
    assert mode_of(tmp_path / "srv/bl.conf") == 0o640
    assert box.host.readlink(driver_state.BLACKLIST) == "../../srv/bl.conf"


def test_a_linked_dkms_tree_is_emptied_and_only_its_link_goes(tmp_path: Path) -> None:
    box = Box(tmp_path).file("/data/dkms/6.16.13/6.14.0-37-generic/x86_64/module/amdgpu.ko").dpkg({})
    box.file("/data/gone/x").file("/var/lib/dkms/x").link(driver_state.DKMS_TREE, "../../../data/dkms")
    box.link("/data/dkms/9.9.9", "../gone")
    driver_purge.repair_trees(box.host)
    driver_purge.sweep(box.host)
    assert not box.host.exists(driver_state.DKMS_TREE)
    assert box.host.listdir("/data/dkms") == [] and box.host.exists("/data/gone/x")


def test_a_change_shows_no_secret(tmp_path: Path) -> None:
    source = f"deb https://{SECRET}@m.lan/x noble main\nmachine m.lan password {SECRET}\n"
    change = Change("l", "apt source", "switch", f"from https://u:{SECRET}@m.lan/", source, source + "#\n")
    assert SECRET not in str(change.diff()) + str(change.public())
    assert "m.lan/x noble main" in str(change.diff())


def test_a_failure_shows_no_password_of_an_address() -> None:
    module = Module()
    fail(module, "l", f"E: Failed to fetch https://u:{SECRET}@m.lan/x", f"see https://{SECRET}@m.lan/")
    assert SECRET not in str(module.said) and "m.lan/x" in module.said["msg"]
