# SPDX-License-Identifier: Apache-2.0
"""A depot's care: what is not its own stays, what is damaged is replaced, a full disk has numbers."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from nasty import TAG, Nasty, bundle_members, publish, tar_gz

from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.depot import archive, collect, lockfile, pack, store
from lemonade_deploy.domain import assets
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.lock import FILE_NAME, Release
from lemonade_deploy.exits import Exit

OLD = "vllm0.1-rocm7-gfx1151"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def release(server: Nasty, here: Path) -> Release:
    """Locked in the present folder; its depot is `d`."""
    return locked(server, publish(server, tar_gz(bundle_members()))[0])


def locked(server: Nasty, made: Release) -> Release:
    found = tuple(dataclasses.replace(a, url=f"{server.url}/{TAG}/{a.name}") for a in made.assets)
    made = dataclasses.replace(made, assets=found)
    lockfile.write(Path(FILE_NAME), {made.tag: made})
    return made


def files(folder: Path) -> Mapping[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_gc_of_a_folder_that_is_no_depot_removes_nothing(
    here: Path, release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    home = here / "home"
    for name in ("Documents", "packages", OLD, "token"):
        (home / name).mkdir(parents=True)
        (home / name / "a.deb").write_bytes(b"mine")
    before = files(home)
    assert dispatch(["depot", "gc", "--depot", str(home)]) == Exit.FAILED
    assert "is no depot" in capsys.readouterr().err
    assert files(home) == before


def test_gc_of_a_depot_leaves_and_names_what_a_depot_does_not_write(
    here: Path, release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["depot", "fetch", "--depot", "d"]) == Exit.OK
    mine = here / "d"
    elsewhere = here / "elsewhere"
    for place in (mine / "photos", mine / "packages", mine / TAG / "deep", mine / OLD / "deep", elsewhere):
        place.mkdir(parents=True)
        (place / "x.jpg").write_bytes(b"mine")
    (elsewhere / "a.deb").write_bytes(b"mine")
    (mine / "mainline").symlink_to(elsewhere)
    (mine / "vllm9-rocm7-gfx1151").symlink_to(elsewhere)
    before = files(here)
    capsys.readouterr()
    assert dispatch(["depot", "gc", "--depot", "d", "--json"]) == Exit.OK
    left = json.loads(capsys.readouterr().out)["left"]
    assert {"photos", "packages/x.jpg", f"{TAG}/deep", OLD, "mainline"} <= set(left)
    assert {name: data for name, data in files(here).items() if "lemonade-depot" not in name} == {
        name: data for name, data in before.items() if "lemonade-depot" not in name
    }


def test_an_older_depot_is_known_by_its_token_or_chunks(here: Path) -> None:
    for name, text in (("token", "x" * 43 + "\n"), (f"{OLD}/chunks.json", "{}")):
        place = here / "old" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        assert store.marked(here / "old")
        shutil.rmtree(here / "old")
    (here / "old").mkdir()
    (here / "old" / "token").write_text("my note")
    assert not store.marked(here / "old")


def test_a_tag_made_anew_with_parts_of_equal_size_replaces_the_old_bytes(here: Path, server: Nasty) -> None:
    """Stored, not compressed: both builds have the same sizes."""

    def publish_stored(salt: int) -> Release:
        data = gzip.compress(gzip.decompress(tar_gz(bundle_members(salt))), 0, mtime=0)
        made = publish(server, data, 2)[0]
        return locked(server, made)

    old = publish_stored(1)
    assert dispatch(["depot", "fetch", "--depot", "d"]) == Exit.OK
    new = publish_stored(2)
    assert [a.size for a in old.assets] == [a.size for a in new.assets]
    assert old.archive != new.archive
    with pytest.raises(store.WrongBytes, match=new.assets[0].sha256):  # what is there is the other build
        pack.pack(here / "d", new)
    assert store.index_of(here / "d", new) is None
    assert dispatch(["depot", "fetch", "--depot", "d"]) == Exit.OK
    for asset in new.assets:
        assert store.digest_of(here / "d" / TAG / asset.name) == asset.sha256
    assert store.index_of(here / "d", new, compare=True) is not None


@pytest.mark.parametrize("victim", ["asset", "chunk", "index", "deb"])
def test_fetch_again_heals_damage(here: Path, server: Nasty, release: Release, victim: str) -> None:
    server.files["/ab_1_all.deb"] = b"!<arch>\npackage"
    assert dispatch(["depot", "add-deb", f"{server.url}/ab_1_all.deb", "--depot", "d"]) == Exit.OK
    assert dispatch(["depot", "fetch", "--depot", "d"]) == Exit.OK
    sound = files(here / "d")
    names = {"asset": f"{TAG}/{release.assets[0].name}", "chunk": f"{TAG}/00000.zst"}
    names |= {"index": f"{TAG}/chunks.json", "deb": "packages/ab_1_all.deb"}
    data = bytearray(sound[names[victim]])
    data[:2] = b"\xff\xfe"
    (here / "d" / names[victim]).write_bytes(data)
    assert dispatch(["depot", "fetch", "--depot", "d"]) == Exit.OK
    assert files(here / "d") == sound


def test_too_little_room_is_told_with_numbers_before_the_first_byte(
    here: Path,
    server: Nasty,
    release: Release,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert dispatch(["depot", "fetch", "--depot", "full"]) == Exit.OK
    assert dispatch(["depot", "export", "b.tar", "--depot", "full"]) == Exit.OK
    server.requests.clear()
    capsys.readouterr()
    monkeypatch.setattr(store, "free", lambda _folder: 1000)
    assert dispatch(["depot", "fetch", "--depot", "full"]) == Exit.OK  # all of it is there
    for words in (["fetch"], ["import", "b.tar"]):
        assert dispatch(["depot", *words, "--depot", "d"]) == Exit.FAILED
        said = capsys.readouterr().err
        assert f"{2 * release.size:,} bytes are needed, 1,000 are free" in said
    assert dispatch(["depot", "export", "c.tar", "--depot", "full"]) == Exit.FAILED
    assert "1,000 are free" in capsys.readouterr().err
    assert server.requests == []
    assert not (here / "d" / TAG).exists() and not list(here.glob("c.tar*"))


def test_a_disk_that_gets_full_is_told_and_export_leaves_no_half(here: Path, release: Release) -> None:
    assert dispatch(["depot", "fetch", "--depot", "d"]) == Exit.OK
    content = archive.Content({release.tag: release}, {})

    def full(_done: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(FetchError, match=r"full, [\d,]+ bytes are free"):
        archive.export(here / "d", content, here / "b.tar", full)
    assert not list(here.glob("b.tar*"))


def test_room_counts_what_an_export_takes(here: Path, release: Release) -> None:
    assert dispatch(["depot", "fetch", "--depot", "d"]) == Exit.OK
    asked: list[int] = []
    content = archive.Content({release.tag: release}, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "demand", lambda _folder, needed: asked.append(needed))
        size = archive.export(here / "d", content, here / "b.tar")
    assert size <= asked[0] <= size + 2 * 10240


HOLDER = """
import sys
from pathlib import Path
from lemonade_deploy.depot import store
with store.held(Path({folder!r}), "fetch"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("verb", ["fetch", "gc", "import", "add-deb"])
def test_one_process_at_a_time_changes_a_depot_and_the_other_is_named(
    here: Path, server: Nasty, release: Release, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert dispatch(["depot", "fetch", "--depot", "d"]) == Exit.OK
    assert dispatch(["depot", "export", "b.tar", "--depot", "d"]) == Exit.OK
    (here / "ab_1_all.deb").write_bytes(b"!<arch>\npackage")
    words = {"import": ["b.tar"], "add-deb": ["ab_1_all.deb"]}.get(verb, [])
    program = HOLDER.format(folder=str(here / "d"))
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        assert dispatch(["depot", verb, *words, "--depot", "d"]) == Exit.FAILED
        assert f"`depot fetch` (process {holder.pid}) is at work in it" in capsys.readouterr().err
    assert dispatch(["depot", verb, *words, "--depot", "d"]) == Exit.OK


def test_a_place_that_cannot_be_written_is_told_before_anything_is_read(
    here: Path, server: Nasty, release: Release
) -> None:
    assert dispatch(["depot", "fetch", "--depot", "d"]) == Exit.OK
    server.requests.clear()
    base = ["depot", "lock", TAG, "--base-url", server.url, "--lock"]
    for lock in ("nowhere/x.lock", str(here)):
        assert dispatch([*base, lock]) == Exit.USAGE
    assert server.requests == []
    for target in (str(here), "nowhere/x.tar", f"d/{TAG}/x.tar"):
        assert dispatch(["depot", "export", target, "--depot", "d"]) == Exit.USAGE
    assert not list(here.rglob("*.partial"))


def test_an_archive_without_content_is_not_locked(
    here: Path, server: Nasty, capsys: pytest.CaptureFixture[str]
) -> None:
    server.put(TAG, assets.single_name(TAG), gzip.compress(bytes(10240)))
    assert dispatch(["depot", "lock", TAG, "--base-url", server.url]) == Exit.FAILED
    assert "no file with any content" in capsys.readouterr().err
    assert not os.listdir(here)


def test_collect_removes_what_an_add_left(here: Path) -> None:
    with store.held(here / "d", "add-deb"):
        (here / "d" / store.INCOMING / "packages").mkdir(parents=True)
    (here / "d" / store.INCOMING / "packages" / "x.deb").write_bytes(b"12")
    (here / "d" / store.INCOMING / "letter.txt").write_bytes(b"mine")
    assert collect.collect(here / "d", []) == [(f"{store.INCOMING}/packages/x.deb", 2)]
    assert collect.find(here / "d", []).foreign == [f"{store.INCOMING}/letter.txt"]
    assert os.listdir(here / "d" / store.INCOMING) == ["letter.txt"]
