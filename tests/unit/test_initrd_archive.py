# SPDX-License-Identifier: Apache-2.0
"""The archives in an initrd: read in every packing, and each cut is seen."""

from __future__ import annotations

import gzip
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest
from driver_box import initrd
from gate_box import MODULES, NEW
from hypothesis import given, settings
from hypothesis import strategies as st

from lemonade_deploy.domain import initrd_archive


def packed(archive: bytes, how: str) -> bytes:
    if how == "plain":
        return archive
    if how == "gzip":
        return gzip.compress(archive)
    if how == "xz":
        return lzma.compress(archive, check=lzma.CHECK_CRC32)
    if shutil.which(how) is None:
        pytest.skip(f"{how} is not installed")
    argv = [how, "-qc", *(["-l"] if how == "lz4" else [])]
    return subprocess.run(argv, input=archive, capture_output=True, check=True).stdout


@pytest.mark.parametrize("how", ["plain", "gzip", "xz", "zstd", "lz4"])
def test_archives_of_every_packing_are_read_and_each_cut_is_seen(tmp_path: Path, how: str) -> None:
    early = gzip.decompress(initrd("microcode")).replace(b"init\0", b"ucod\0")
    main = packed(gzip.decompress(initrd(NEW, *MODULES)), how)
    image = tmp_path / "initrd"
    image.write_bytes(early + b"\0" * 512 + main)
    names = initrd_archive.names(str(image))
    assert {"ucod", "init"} <= names
    assert f"lib/modules/{NEW}/{MODULES[0]}" in names, "usr/ is left out"
    for cut in (3, len(main) // 2, len(main) - 20):
        image.write_bytes(early + b"\0" * 512 + main[:-cut])
        with pytest.raises(initrd_archive.Damaged):
            initrd_archive.names(str(image))


def test_rubbish_behind_the_archive_is_seen(tmp_path: Path) -> None:
    image = tmp_path / "initrd"
    image.write_bytes(gzip.decompress(initrd(NEW)) + b"rubbish")
    with pytest.raises(initrd_archive.Damaged, match="neither an archive nor packed"):
        initrd_archive.names(str(image))
    image.write_bytes(gzip.compress(b"no archive at all"))
    with pytest.raises(initrd_archive.Damaged, match="holds no archive"):
        initrd_archive.names(str(image))


def test_a_damaged_header_does_not_ask_for_gigabytes(tmp_path: Path) -> None:
    whole = bytearray(gzip.decompress(initrd(NEW)))
    whole[94:102] = b"FFFFFFFF"
    image = tmp_path / "initrd"
    image.write_bytes(bytes(whole))
    with pytest.raises(initrd_archive.Damaged, match="name has no end"):
        initrd_archive.names(str(image))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_no_cut_of_a_plain_image_passes_as_whole(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    whole = gzip.decompress(initrd(NEW, *MODULES)).rstrip(b"\0")
    image = tmp_path_factory.getbasetemp() / "cut"
    image.write_bytes(whole[: cut % len(whole)])
    with pytest.raises(initrd_archive.Damaged):
        initrd_archive.names(str(image))
