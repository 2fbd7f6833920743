# SPDX-License-Identifier: Apache-2.0
"""Unpacking: what survives, what is refused, and what a damaged archive says."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty import bundle_members, info, tar_gz

from lemonade_deploy.domain import tree_writer
from lemonade_deploy.domain.gunzip import ArchiveError, inflate
from lemonade_deploy.domain.manifest import Manifest, of_tree
from lemonade_deploy.domain.tarstream import Stream, members
from lemonade_deploy.domain.tree_writer import TreeWriter
from lemonade_deploy.domain.unpack import Nowhere, unpack


def lay(archive: bytes, folder: Path, step: int = 1 << 20) -> Manifest:
    chunks = (archive[start : start + step] for start in range(0, len(archive), step))
    with TreeWriter(str(folder)) as writer:
        manifest = unpack(inflate(chunks), writer)
        writer.close()
    return manifest


def test_hidden_files_modes_links_and_times_survive(tmp_path: Path) -> None:
    manifest = lay(tar_gz(bundle_members()), tmp_path, 777)
    site = tmp_path / "lib/python3.14/site-packages"
    assert (site / "torch/.kpack/torch_gfx1151.kpack").read_bytes() == b"code" * 50
    assert stat.S_IMODE((tmp_path / "bin/vllm-server").stat().st_mode) == 0o755
    assert stat.S_IMODE((site / "vllm/_C.abi3.so").stat().st_mode) == 0o775
    assert stat.S_IMODE((site / "blob").stat().st_mode) == 0o644
    assert (tmp_path / "bin/python3").readlink() == Path("python3.14")
    assert (site / "blob").stat().st_nlink == 2
    assert (site / "blob").stat().st_mtime == 1_700_000_000
    assert of_tree(str(tmp_path)).text() == manifest.text()


def test_the_umask_does_not_count(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        lay(tar_gz(bundle_members()), tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "lib/python3.14").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "bin/vllm-server").stat().st_mode) == 0o755


def test_a_manifest_is_the_same_without_a_disk(tmp_path: Path) -> None:
    archive = tar_gz(bundle_members())
    assert unpack(inflate([archive]), Nowhere()).digest() == lay(archive, tmp_path).digest()


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([info("../evil")], "with `..`"),
        ([info("a/../../evil")], "with `..`"),
        ([info("/etc/evil")], "absolute path"),
        ([info("a\nb")], "control characters"),
        ([info(".lemonade-deploy.json")], "itself uses"),
        ([info("link", tarfile.SYMTYPE, target="/etc/passwd")], "leaves the bundle"),
        ([info("link", tarfile.SYMTYPE, target="../x")], "leaves the bundle"),
        ([info("a/b/link", tarfile.SYMTYPE, target="c/../../../../x")], "leaves the bundle"),
        ([info("a/d", tarfile.SYMTYPE, target="."), info("a/d/x")], "lies below a/d"),
        ([info("f"), info("f/x")], "lies below f"),
        ([info("a", tarfile.DIRTYPE, 0o755), info("a", tarfile.SYMTYPE, target="b")], "under one name"),
        ([info("l", tarfile.LNKTYPE, target="/etc/passwd")], "absolute path"),
        ([info("l", tarfile.LNKTYPE, target="nowhere")], "not a file of this archive"),
        ([info("s", tarfile.SYMTYPE, target="t"), info("h", tarfile.LNKTYPE, target="s")], "not a file"),
        ([info("dev", tarfile.CHRTYPE)], "character device"),
        ([info("dev", tarfile.BLKTYPE)], "block device"),
        ([info("pipe", tarfile.FIFOTYPE)], "a fifo"),
        ([info("su", mode=0o4755)], "set-uid"),
        ([info("n" * 256)], "name of 256 bytes"),
        ([info("a/" + "é" * 128 + "/b")], "name of 260 bytes"),
        ([info("/".join(["n" * 200] * 20))], "name of 4019 bytes"),
        ([info("link", tarfile.SYMTYPE, target="n/" * 2048)], "a link to a name of 4096 bytes"),
        ([info("s", tarfile.SYMTYPE, target="t"), info("s", tarfile.LNKTYPE, target="s")], "not a file"),
    ],
)
def test_what_could_reach_out_is_refused(tmp_path: Path, members: list[tarfile.TarInfo], said: str) -> None:
    inside = tmp_path / "a" / "tree"
    inside.mkdir(parents=True)
    with pytest.raises(ArchiveError, match=said):
        lay(tar_gz([(member, b"") for member in members]), inside)
    assert sorted(tmp_path.rglob("*evil*")) == []


def test_a_hard_link_to_itself_changes_nothing(tmp_path: Path) -> None:
    manifest = lay(tar_gz([(info("z"), b"x"), (info("z", tarfile.LNKTYPE, target="./z"), b"")]), tmp_path)
    assert (tmp_path / "z").read_bytes() == b"x"
    assert of_tree(str(tmp_path)).text() == manifest.text()


@pytest.mark.parametrize(
    ("layout", "said", "kept"),
    [
        (tarfile.GNU_FORMAT, -5, 0),
        (tarfile.GNU_FORMAT, -(1 << 60), 0),
        (tarfile.GNU_FORMAT, 1 << 80, 1 << 33),
        (tarfile.PAX_FORMAT, -5.5, 0),
        (tarfile.PAX_FORMAT, 1e40, 1 << 33),
        (tarfile.PAX_FORMAT, 1_700_000_000.9, 1_700_000_000),
    ],
)
def test_a_time_that_no_file_can_have(tmp_path: Path, layout: int, said: float, kept: int) -> None:
    odd, large = info("odd"), info("large")
    odd.mtime = large.mtime = said  # type: ignore[assignment]
    large.size = tree_writer.LARGE
    plain = gzip.decompress(tar_gz([(odd, b"x"), (large, bytes(large.size))], format=layout))
    times = [member.mtime for member, _content in members(Stream([plain]))]
    assert times == [kept, kept]
    lay(gzip.compress(plain), tmp_path)
    assert (tmp_path / "odd").read_bytes() == b"x"


def test_a_size_below_zero_is_an_error() -> None:
    block = bytearray(info("f").tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"\xff" * 11 + b"\xfb"  # -5 in GNU's binary form
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(ArchiveError, match="a size of -5 bytes"):
        list(members(Stream([bytes(block) + bytes(1024)])))


def test_a_pax_record_of_any_length_is_an_error() -> None:
    header = tarfile.TarInfo("h")
    header.type, text = tarfile.XHDTYPE, b"9" * 5000 + b" a=b\n"
    header.size = len(text)
    archive = header.tobuf(tarfile.USTAR_FORMAT) + text + bytes(-len(text) % 512)
    with pytest.raises(ArchiveError, match="malformed"):
        list(members(Stream([archive])))


def test_a_later_member_replaces_an_earlier_one(tmp_path: Path) -> None:
    manifest = lay(tar_gz([(info("f"), b"one"), (info("f"), b"twoo")]), tmp_path)
    assert (tmp_path / "f").read_bytes() == b"twoo"
    assert (manifest.files, manifest.size) == (1, 4)


def test_a_replaced_link_is_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "target"
    outside.write_text("mine")
    tree = tmp_path / "tree"
    tree.mkdir()
    lay(
        tar_gz([(info("x"), b"in"), (info("f", tarfile.SYMTYPE, target="x"), b""), (info("f"), b"new")]), tree
    )
    assert (tree / "x").read_bytes() == b"in"
    assert (tree / "f").read_bytes() == b"new"
    assert not (tree / "f").is_symlink()


def test_more_than_the_lock_says_is_not_unpacked(tmp_path: Path) -> None:
    archive = tar_gz([(info("big"), bytes(10_000))])
    with pytest.raises(ArchiveError, match="expected 5000 bytes"):
        unpack(inflate([archive]), Nowhere(), 5000)


@pytest.mark.parametrize("keep", [0, 10, 500, -1])
def test_a_truncated_archive_is_an_error(tmp_path: Path, keep: int) -> None:
    with pytest.raises(ArchiveError):
        lay(tar_gz(bundle_members())[:keep], tmp_path)


def test_a_damaged_header_is_an_error(tmp_path: Path) -> None:
    plain = bytearray(gzip.decompress(tar_gz([(info("f"), b"x")])))
    plain[3] ^= 1
    with pytest.raises(ArchiveError, match="checksum"):
        lay(gzip.compress(bytes(plain)), tmp_path)


def test_several_gzip_members_and_zero_padding_are_one_stream() -> None:
    stream = gzip.compress(b"a" * 3_000_000) + gzip.compress(b"b") + bytes(512)
    for step in (1, 100, len(stream)) if len(stream) < 10_000 else (100, len(stream)):
        chunks = [stream[start : start + step] for start in range(0, len(stream), step)]
        assert b"".join(inflate(chunks)) == b"a" * 3_000_000 + b"b"


NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_characters="/\x7f"),
    min_size=1,
    max_size=120,
)
PATHS = st.lists(NAMES.filter(lambda name: name not in (".", "..")), min_size=1, max_size=4).map("/".join)


@settings(max_examples=60, deadline=None)
@given(
    files=st.dictionaries(PATHS, st.binary(max_size=2000), max_size=6),
    layout=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    step=st.integers(1, 5000),
)
def test_what_tarfile_writes_is_read(files: dict[str, bytes], layout: int, step: int) -> None:
    names = {
        name: data
        for name, data in files.items()
        if not name.startswith(".lemonade-deploy")
        and not any(other.startswith(f"{name}/") for other in files)
    }
    archive = tar_gz([(info(name), data) for name, data in names.items()], format=layout)
    chunks = (archive[start : start + step] for start in range(0, len(archive), step))
    manifest = unpack(inflate(chunks), Nowhere())
    assert manifest.files == len(names)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert {entry.name: entry.size for entry in tar} == {n: manifest.file(n)[1] for n in names}  # type: ignore[index]
