# SPDX-License-Identifier: Apache-2.0
"""A lay-down that ended in the middle goes on there: chunk by chunk, and only with what is sound."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_host import Box, serve_chunks
from nasty import TAG, Nasty, bundle_members, info, publish, status, tar_gz

from lemonade_deploy.depot import pack
from lemonade_deploy.domain import bundle_progress, depot_index, tree_writer
from lemonade_deploy.domain.bundle_sources import Place
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.lock import Release

PLAIN = 50_000
SITE = "lib/python3.14/site-packages"


@pytest.fixture
def release(server: Nasty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Release:
    """In some 20 chunks: many small files, then one that is large here, then some more."""
    monkeypatch.setattr(pack, "PLAIN", PLAIN)
    monkeypatch.setattr(bundle_progress, "STEP", 10_000)
    monkeypatch.setattr(tree_writer, "LARGE", 100_000)
    small = [(info(f"./{SITE}/m{number}.py"), os.urandom(3000)) for number in range(90)]
    members = [*small[:80], *bundle_members(), *small[80:]]
    made = publish(server, tar_gz(members))[0]
    serve_chunks(server, made, tmp_path / "depot")
    return made


@pytest.fixture
def box(tmp_path: Path, server: Nasty) -> Box:
    made = Box(tmp_path / "host", server.url)
    made.places = (Place("depot", server.url),)
    return made


def chunk(number: int) -> str:
    return f"/{TAG}/{number:05d}.zst"


def count(server: Nasty) -> int:
    return sum(path.endswith(".zst") for path in server.files)


def asked(server: Nasty) -> list[int]:
    """Numbers of the chunks that were asked for since the last call."""
    names = [path.rpartition("/")[2] for path, _span in server.requests]
    server.requests.clear()
    return sorted({int(name[:5]) for name in names if name.endswith(".zst")})


def end_in(box: Box, server: Nasty, release: Release, number: int) -> None:
    """A run that ends at a chunk, as if the depot went away."""
    server.moves[chunk(number)] = [status(503)] * 6
    with pytest.raises(FetchError):
        box.run(release)
    server.moves.clear()
    server.requests.clear()


@pytest.mark.parametrize("number", [1, 5, 8, 12, 14])
def test_it_goes_on_with_the_chunk_where_it_ended(
    box: Box, server: Nasty, release: Release, number: int
) -> None:
    assert count(server) > 14
    end_in(box, server, release, number)
    assert ("leftovers", "remove") not in box.run(release, check_mode=True)
    box.run(release)
    box.assert_whole(release)
    fetched = asked(server)
    assert fetched == list(range(fetched[0], count(server)))
    assert fetched[0] >= number - 2  # notes are written in steps, and one or two chunks were on their way
    assert box.stats.resumed > 0


def test_a_large_file_goes_on_in_its_middle(box: Box, server: Nasty, release: Release) -> None:
    """Its 400,000 bytes are in chunks 6 to 14."""
    end_in(box, server, release, 12)
    half = box.place(f"{TAG}.partial", SITE, "blob").stat()
    assert 200_000 < half.st_size < 400_000
    box.run(release)
    assert asked(server)[0] >= 9
    whole = box.place(TAG, SITE, "blob").stat()
    assert (whole.st_ino, whole.st_size, whole.st_mtime) == (half.st_ino, 400_000, 1_700_000_000)
    box.assert_whole(release)


def spoil_a_byte(partial: Path) -> None:
    path = partial / SITE / "m3.py"
    times = path.stat()
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def other_mode(partial: Path) -> None:
    (partial / SITE / "m3.py").chmod(0o600)


def other_time(partial: Path) -> None:
    """Python trusts bytecode by it."""
    os.utime(partial / SITE / "m3.py", (1, 1))


def a_link(partial: Path) -> None:
    path = partial / SITE / "m3.py"
    path.unlink()
    path.symlink_to("m4.py")


def spoil_the_large_one(partial: Path) -> None:
    with (partial / SITE / "blob").open("r+b") as stream:
        stream.write(b"X")


def torn_notes(partial: Path) -> None:
    path = partial / bundle_progress.NAME
    path.write_bytes(path.read_bytes()[:2000] + b"\n12 x y\nf")


def strangers(partial: Path) -> None:
    (partial / SITE / "evil.pth").write_text("import evil")
    (partial / "folder").mkdir()
    (partial / "folder" / "x").write_text("x")


@pytest.mark.parametrize(
    "damage",
    [spoil_a_byte, other_mode, other_time, a_link, spoil_the_large_one, torn_notes, strangers],
)
def test_what_is_not_sound_is_fetched_anew(
    box: Box, server: Nasty, release: Release, damage: Callable[[Path], None]
) -> None:
    end_in(box, server, release, 12)
    damage(box.place(f"{TAG}.partial"))
    box.run(release)
    box.assert_whole(release)
    assert box.stats.notes == []
    first = asked(server)[0]
    assert (first < 2) is (damage not in (spoil_the_large_one, strangers))
    for path in box.place(TAG, SITE).glob("*.py"):
        assert path.stat().st_mtime == 1_700_000_000


def test_notes_that_vouch_for_something_else_end_in_a_new_begin(
    box: Box, server: Nasty, release: Release
) -> None:
    """As if a depot that was not honest had been there first: notes and files agree, the lock does not."""
    end_in(box, server, release, 12)
    partial = box.place(f"{TAG}.partial")
    before = (partial / SITE / "m3.py").read_bytes()
    spoil_a_byte(partial)
    after = (partial / SITE / "m3.py").read_bytes()
    notes = partial / bundle_progress.NAME
    old, new = (hashlib.sha256(data).hexdigest().encode() for data in (before, after))
    notes.write_bytes(notes.read_bytes().replace(old, new))
    box.run(release)
    box.assert_whole(release)
    assert "did not fit and was fetched anew" in box.stats.notes[0]


def test_another_place_goes_on_too(box: Box, server: Nasty, release: Release) -> None:
    end_in(box, server, release, 12)
    box.places = (Place("upstream", server.url),)
    box.run(release)
    box.assert_whole(release)
    assert box.stats.resumed > 200_000


def test_an_unfinished_tree_of_other_bytes_is_a_leftover(box: Box, server: Nasty, release: Release) -> None:
    end_in(box, server, release, 12)
    other = publish(server, tar_gz(bundle_members(7)))[0]
    box.places = ()
    assert ("leftovers", "remove") in box.run(other)
    box.assert_whole(other)


def test_a_folder_without_notes_is_a_leftover(box: Box, server: Nasty, release: Release) -> None:
    end_in(box, server, release, 12)
    (box.place(f"{TAG}.partial") / bundle_progress.NAME).unlink()
    assert ("leftovers", "remove") in box.run(release)
    box.assert_whole(release)


def test_an_index_that_does_not_add_up_is_refused(release: Release) -> None:
    index = depot_index.Index(release.tag, release.archive, 100, (), 10)
    with pytest.raises(depot_index.BadIndex, match="0 chunks of 10 bytes for 100"):
        depot_index.parse(index.text(), release)


def test_a_tree_without_a_locked_digest_begins_anew(box: Box, server: Nasty, release: Release) -> None:
    bare = dataclasses.replace(release, tree=None)
    box.places = ()
    server.moves[f"/{TAG}/{release.assets[1].name}"] = [status(404)]
    with pytest.raises(FetchError):
        box.run(bare)
    assert ("leftovers", "remove") in box.run(bare)
    assert box.place(TAG).is_dir()
