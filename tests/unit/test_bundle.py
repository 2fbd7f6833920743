# SPDX-License-Identifier: Apache-2.0
"""The bundle on a host: from an empty disk to a current tree, and every way it goes wrong."""

from __future__ import annotations

import dataclasses
import os
import random
import stat
import subprocess
from pathlib import Path

import pytest
from bundle_host import Box
from nasty import (
    TAG,
    Nasty,
    bundle_members,
    cut,
    info,
    length,
    no_ranges,
    publish,
    spoiled,
    status,
    tar_gz,
)

from lemonade_deploy.domain import bundle, disk, tree_writer
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.lock import Asset, Release
from lemonade_deploy.domain.module import Refused
from lemonade_deploy.domain.paths import BUNDLE_ROOT, CACHE_DIR, LAUNCHER

FRESH = [("bundle", "install"), ("current bundle", "link"), ("launcher", "write")]


@pytest.fixture
def release(server: Nasty) -> Release:
    return publish(server, tar_gz(bundle_members()))[0]


def test_check_mode_says_what_the_run_does_and_writes_nothing(box: Box, release: Release) -> None:
    assert box.run(release, check_mode=True) == FRESH
    assert list(box.root.iterdir()) == []
    assert box.run(release) == FRESH
    box.assert_whole(release)


def test_a_second_run_reads_nothing_and_changes_nothing(box: Box, release: Release, server: Nasty) -> None:
    box.run(release)
    server.requests.clear()
    assert box.run(release) == []
    assert server.requests == []


def test_the_launcher_execs_the_resolved_folder(box: Box, release: Release, tmp_path: Path) -> None:
    box.run(release)
    launcher = box.root / LAUNCHER.lstrip("/")
    assert stat.S_IMODE(launcher.stat().st_mode) == 0o755
    # Its paths are the host's own; give them this root.
    script = tmp_path / "launcher"
    script.write_text(launcher.read_text().replace(BUNDLE_ROOT, str(box.place())))
    server = box.place(TAG, "bin/vllm-server")
    server.write_text('#!/bin/sh\necho "$0 $PYTHONNOUSERSITE $*"\n')
    done = subprocess.run(["sh", str(script), "--port", "1 2"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{server} 1 --port 1 2\n"
    box.place("current").unlink()
    failed = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=False)
    assert failed.returncode == 127
    assert "no vLLM bundle is active" in failed.stderr


def test_a_damaged_launcher_is_written_again(box: Box, release: Release) -> None:
    box.run(release)
    (box.root / LAUNCHER.lstrip("/")).chmod(0o644)
    assert box.run(release) == [("launcher", "write")]


def test_an_update_keeps_one_previous_and_removes_older_ones(box: Box, server: Nasty) -> None:
    made = [publish(server, tar_gz(bundle_members(n)), tag=f"vllm{n}-rocm7-gfx1151")[0] for n in range(3)]
    box.run(made[0])
    assert box.run(made[1]) == [("bundle", "install"), ("current bundle", "link")]
    assert box.run(made[2], check_mode=True) == box.run(made[2])
    assert box.host.listdir(BUNDLE_ROOT) == sorted(["current", made[1].tag, made[2].tag])
    # Back to the previous one: nothing is fetched, the link is all.
    server.requests.clear()
    assert box.run(made[1]) == [("current bundle", "link")]
    assert server.requests == []


def test_a_tree_that_a_process_has_mapped_is_not_removed(box: Box, server: Nasty) -> None:
    made = [publish(server, tar_gz(bundle_members(n)), tag=f"vllm{n}-rocm7-gfx1151")[0] for n in range(3)]
    box.run(made[0])
    process = box.root / "proc" / "4242"
    process.mkdir(parents=True)
    (process / "maps").write_text(
        f"7f00-7f01 r-xp 0 fe:00 1 {BUNDLE_ROOT}/{made[0].tag}/lib/libpython3.14.so\n"
    )
    box.run(made[1], keep=0)
    assert box.place(made[0].tag).is_dir()
    (process / "maps").unlink()
    assert box.run(made[1], keep=0) == [("old bundles", "remove")]
    assert not box.place(made[0].tag).exists()


def test_the_same_tag_with_other_locked_bytes_goes_to_a_folder_of_its_own(box: Box, server: Nasty) -> None:
    old = publish(server, tar_gz(bundle_members(1)))[0]
    box.run(old)
    new = publish(server, tar_gz(bundle_members(2)))[0]
    assert box.run(new) == [("bundle", "install"), ("current bundle", "link")]
    assert box.current == f"{TAG}.2"
    assert box.place(TAG).is_dir()
    assert box.run(new) == []


def test_a_name_with_a_line_break_of_unicode_is_no_damage(box: Box, server: Nasty) -> None:
    odd = publish(server, tar_gz([*bundle_members(), (info("a\u2028b\x85c"), b"x")]))[0]
    box.run(odd)
    assert box.run(odd, verify=True) == []


@pytest.mark.parametrize("name", ["torch/.kpack/torch_gfx1151.kpack", "vllm/_rocm_C.abi3.so"])
def test_a_tree_that_lost_a_vital_part_is_laid_down_again(box: Box, release: Release, name: str) -> None:
    box.run(release)
    (box.place(TAG) / "lib/python3.14/site-packages" / name).unlink()
    assert box.run(release) == [("bundle", "install"), ("current bundle", "link"), ("old bundles", "remove")]
    box.assert_whole(release)


def test_every_file_is_compared_when_asked(box: Box, release: Release) -> None:
    box.run(release)
    (box.place(TAG) / "bin/more").touch()
    assert box.run(release, verify=True) == []
    blob = box.place(TAG) / "lib/python3.14/site-packages/blob"
    data = bytearray(blob.read_bytes())
    data[1000] ^= 1
    blob.write_bytes(data)
    assert box.run(release) == []
    assert box.run(release, verify=True)[0] == ("bundle", "install")
    assert box.current == f"{TAG}.2"


def test_hiccups_on_the_way_do_no_harm(box: Box, server: Nasty) -> None:
    release, paths = publish(server, tar_gz(bundle_members()))
    chance = random.Random(3)
    server.moves[paths[0]] = [cut(chance.randrange(50_000)) for _ in range(4)]
    server.moves[paths[1]] = [status(429, Retry_After="0"), cut(1000), no_ranges]
    server.moves[paths[2]] = [status(503), length(10), cut(1)]
    box.run(release)
    box.assert_whole(release)
    assert box.stats.retries == 9


def test_a_part_that_arrives_damaged_once_is_fetched_once_more(box: Box, server: Nasty) -> None:
    release, paths = publish(server, tar_gz(bundle_members()))
    server.moves[paths[1]] = [spoiled]
    box.run(release)
    box.assert_whole(release)
    assert "part02-of-03" in box.stats.notes[0]
    # The parts that were right are not fetched again.
    assert [path for path, _span in server.requests] == [paths[0], paths[1], paths[1], paths[2]]


@pytest.mark.parametrize("cache", [True, False])
def test_a_part_with_other_bytes_is_refused_with_both_digests(
    box: Box, server: Nasty, monkeypatch: pytest.MonkeyPatch, cache: bool
) -> None:
    release, paths = publish(server, tar_gz(bundle_members()))
    server.moves[paths[1]] = [spoiled] * 9
    if not cache:
        monkeypatch.setattr("lemonade_deploy.domain.bundle_space.cache_folder", lambda *_: (None, "no room"))
    with pytest.raises(Refused) as refused:
        box.run(release)
    for text in (release.assets[1].name, release.assets[1].sha256, "got"):
        assert text in refused.value.found
    assert box.current is None
    assert box.host.listdir(BUNDLE_ROOT) == []


def test_a_missing_part_names_it_and_the_old_bundle_stays(box: Box, server: Nasty, release: Release) -> None:
    box.run(release)
    new, paths = publish(server, tar_gz(bundle_members(5)), tag="vllm9-rocm7-gfx1151")
    del server.files[paths[2]]
    with pytest.raises(Refused, match=r"part03-of-03\.tar\.gz: HTTP 404"):
        box.run(new)
    assert box.current == release.tag
    # What was unpacked waits for the next run.
    assert box.host.listdir(BUNDLE_ROOT) == sorted(["current", release.tag, f"{new.tag}.partial"])
    # What arrived is kept: the next run asks for the missing part only.
    server.requests.clear()
    server.files[paths[2]] = tar_gz(bundle_members(5))[-new.assets[2].size :]
    box.run(new)
    assert [path for path, _span in server.requests] == [paths[2]]


def test_a_truncated_part_is_refused_with_numbers(box: Box, server: Nasty) -> None:
    release, paths = publish(server, tar_gz(bundle_members()))
    server.files[paths[1]] = server.files[paths[1]][:-7]
    size = release.assets[1].size
    with pytest.raises(Refused, match=f"expected {size} bytes, the server has {size - 7}"):
        box.run(release)


def test_another_tree_than_the_locked_one_is_refused(box: Box, release: Release) -> None:
    assert release.tree is not None
    wrong = dataclasses.replace(release, tree=dataclasses.replace(release.tree, digest="0" * 64))
    with pytest.raises(Refused, match=f"{release.tree.digest}, the lock file says {'0' * 64}"):
        box.run(wrong)
    assert box.current is None


def test_an_archive_that_reaches_out_is_refused_even_when_locked(box: Box, server: Nasty) -> None:
    archive = tar_gz([*bundle_members(), (info("../../evil"), b"x")])
    harmless, _paths = publish(server, tar_gz(bundle_members()))
    server.put("t-gfx1151", "one.tar.gz", archive)
    asset = Asset("one.tar.gz", len(archive), __import__("hashlib").sha256(archive).hexdigest())
    with pytest.raises(Refused, match=r"archive is unusable.*with `\.\.`"):
        box.run(dataclasses.replace(harmless, tag="t-gfx1151", assets=(asset,), tree=None))
    assert list(box.root.rglob("evil")) == []
    assert box.host.listdir(BUNDLE_ROOT) == []


def test_a_lock_without_a_tree_is_enough(box: Box, release: Release) -> None:
    bare = dataclasses.replace(release, tree=None)
    assert box.run(bare) == FRESH
    observed = bundle.observe(box.host, bare, ())
    assert release.tree is not None
    assert bundle.public(observed, bare)["digest"] == f"sha256:{release.tree.digest}"


def test_a_bundle_that_fails_its_checks_never_becomes_current(
    box: Box, release: Release, server: Nasty
) -> None:
    def red(_host: Host, tree: str, family: str) -> None:
        raise Refused(f"{family} is missing in {os.path.basename(tree)}")

    box.check = red
    with pytest.raises(Refused, match="gfx1151 is missing"):
        box.run(release)
    assert box.host.listdir(BUNDLE_ROOT) == []
    box.check = lambda *_: None
    server.requests.clear()
    box.run(release)
    assert server.requests == []  # the verified parts were kept


def test_too_small_a_disk_is_said_before_the_first_byte(
    box: Box, release: Release, server: Nasty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda *_: 100 << 20)
    for check_mode in (True, False):
        with pytest.raises(
            Refused, match=r"needs 257 MiB below /opt.*, 100 MiB are free \(missing: 157 MiB\)"
        ):
            box.run(release, check_mode=check_mode)
    assert server.requests == []


def test_room_for_the_tree_only_means_no_parts_are_kept(
    box: Box, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda *_: 257 << 20)
    box.run(release)
    box.assert_whole(release)
    assert "parts are not kept" in box.stats.notes[0]


def test_a_disk_that_fills_up_is_told_with_numbers(
    box: Box, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def full(handle: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{handle}").endswith("blob"):
            raise OSError(28, "No space left on device")
        return real(handle, data)

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(tree_writer, "LARGE", 1)
    with pytest.raises(Refused, match=r"disk filled up.*No space left.*257 MiB are needed.*MiB are free"):
        box.run(release)
    assert box.host.listdir(BUNDLE_ROOT) == []


def test_leftovers_of_killed_runs_go(box: Box, release: Release) -> None:
    box.run(release)
    box.place("other.partial").mkdir()
    stale = Path(box.host.path(f"{CACHE_DIR}/old-tag"))
    stale.mkdir(parents=True)
    assert box.run(release, check_mode=True) == [("leftovers", "remove")]
    assert box.run(release) == [("leftovers", "remove")]
    box.assert_whole(release)
    assert not stale.exists()
