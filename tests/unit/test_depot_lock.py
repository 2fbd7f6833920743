# SPDX-License-Identifier: Apache-2.0
"""`depot lock`: discovery, trust on first use, and a tag that changed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from nasty import POLICY, TAG, Nasty, bundle_members, cut, publish, status, tar_gz
from typer.testing import CliRunner

from lemonade_deploy.cli import depot
from lemonade_deploy.depot import lockfile
from lemonade_deploy.depot.lock import lock_release
from lemonade_deploy.domain import assets
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.lock import Release
from lemonade_deploy.errors import UsageError

ARCHIVE = tar_gz(bundle_members())


def without_notes(release: Release) -> Release:
    bare = tuple(dataclasses.replace(asset, url="") for asset in release.assets)
    return dataclasses.replace(release, locked_at="", source="", assets=bare)


def run(server: Nasty, lock: Path, *more: str) -> tuple[int, str, str]:
    words = ["lock", TAG, "--lock", str(lock), "--base-url", server.url, *more]
    done = CliRunner().invoke(depot.app, words, standalone_mode=False)
    assert done.exception is None, done.exception
    return done.return_value, done.stdout, done.stderr


def test_split_parts(server: Nasty) -> None:
    wanted, paths = publish(server, ARCHIVE)
    server.moves[paths[1]] = [cut(500), status(503)]
    assert without_notes(lock_release(server.url, TAG, "gfx1151", policy=POLICY)) == without_notes(wanted)


def test_a_single_archive_and_the_old_names_give_the_same_tree(server: Nasty) -> None:
    wanted, _paths = publish(server, ARCHIVE)
    server.put("a-gfx1151", assets.single_name("a-gfx1151"), ARCHIVE)
    server.put("b-gfx1151", assets.old_part_name("b-gfx1151", 0), ARCHIVE[:1000])
    server.put("b-gfx1151", assets.old_part_name("b-gfx1151", 1), ARCHIVE[1000:])
    single = lock_release(server.url, "a-gfx1151", "gfx1151", policy=POLICY)
    old = lock_release(server.url, "b-gfx1151", "gfx1151", policy=POLICY)
    assert single.tree == old.tree == wanted.tree
    assert [a.name for a in single.assets] == ["a-gfx1151-x64.tar.gz"]
    assert [a.name for a in old.assets] == ["b-gfx1151-x64.part00.tar.gz", "b-gfx1151-x64.part01.tar.gz"]


def test_a_release_that_is_not_there_names_what_was_tried(server: Nasty) -> None:
    with pytest.raises(FetchError, match=r"no bundle of release x-gfx1151.*partcount.*tar\.gz.*part00"):
        lock_release(server.url, "x-gfx1151", "gfx1151", policy=POLICY)


@pytest.mark.parametrize("text", [b"0", b"100", b"two", b"", b"<html>"])
def test_a_partcount_that_is_none(server: Nasty, text: bytes) -> None:
    server.put(TAG, assets.partcount_name(TAG), text)
    with pytest.raises(FetchError, match="expected a number from 1 to 99"):
        lock_release(server.url, TAG, "gfx1151", policy=POLICY)


def test_a_partcount_that_is_too_large_or_too_small(server: Nasty) -> None:
    publish(server, ARCHIVE)
    server.put(TAG, assets.partcount_name(TAG), b"4")
    with pytest.raises(FetchError, match=r"part01-of-04\.tar\.gz: HTTP 404"):
        lock_release(server.url, TAG, "gfx1151", policy=POLICY)


def test_an_archive_that_ends_early_is_not_locked(server: Nasty) -> None:
    server.put(TAG, assets.single_name(TAG), ARCHIVE[:-100])
    with pytest.raises(FetchError, match="unusable"):
        lock_release(server.url, TAG, "gfx1151", policy=POLICY)


def test_first_use_is_loud_and_written_and_the_second_changes_nothing(server: Nasty, tmp_path: Path) -> None:
    wanted, _paths = publish(server, ARCHIVE)
    lock = tmp_path / "lemonade-deploy.lock"
    code, out, err = run(server, lock)
    assert (code, out) == (0, "")
    assert "TRUST ON FIRST USE" in err
    assert wanted.assets[0].sha256 in err
    entry = lockfile.read(lock)[TAG]
    assert without_notes(entry) == without_notes(wanted)
    assert "%2B" in entry.assets[0].url
    text = lock.read_bytes()
    code, _out, err = run(server, lock)
    assert code == 0
    assert "unchanged" in err
    assert lock.read_bytes() == text


def test_other_bytes_for_a_locked_tag_show_both_and_change_nothing(server: Nasty, tmp_path: Path) -> None:
    old, _paths = publish(server, ARCHIVE)
    lock = tmp_path / "lemonade-deploy.lock"
    run(server, lock)
    text = lock.read_bytes()
    new, _paths = publish(server, tar_gz(bundle_members(9)))
    code, out, err = run(server, lock, "--json")
    assert code == 1
    for digest in (old.assets[1].sha256, new.assets[1].sha256):
        assert digest in err
    said = json.loads(out)
    assert said["exit_code"] == 1
    assert "is not what was locked" in said["error"]["message"]
    assert lock.read_bytes() == text


def test_other_entries_stay(server: Nasty, tmp_path: Path) -> None:
    other, _paths = publish(server, ARCHIVE, tag="vllm1.0-rocm7.0-gfx120X", family="gfx120X")
    lock = tmp_path / "lemonade-deploy.lock"
    lockfile.write(lock, {other.tag: other})
    publish(server, ARCHIVE)
    assert run(server, lock)[0] == 0
    assert sorted(lockfile.read(lock)) == sorted([TAG, other.tag])
    assert lockfile.read(lock)[other.tag] == other


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lock", "latest"], "no vllm-rocm release"),
        (["lock", "default", "--gfx", "gfx1152"], "no release serves it"),
        (["lock", TAG, "--gfx", "gfx120X"], "is for gfx1151"),
        (["lock", "default", "-i", "nowhere.yml"], "no inventory nowhere.yml"),
    ],
)
def test_wrong_usage(words: list[str], said: str) -> None:
    done = CliRunner().invoke(depot.app, words, standalone_mode=False)
    assert isinstance(done.exception, UsageError)
    assert said in done.exception.found


def test_the_lock_lies_beside_the_inventory(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").touch()
    assert lockfile.beside(str(tmp_path / "hosts.yml")) == tmp_path / "lemonade-deploy.lock"
    assert lockfile.beside(str(tmp_path)) == tmp_path / "lemonade-deploy.lock"
