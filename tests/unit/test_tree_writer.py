# SPDX-License-Identifier: Apache-2.0
"""Writing a tree through tar and beside it: names, order, errors, and a lock that outlives a kill."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from nasty import info, tar_gz

from lemonade_deploy.domain import tree_writer
from lemonade_deploy.domain.gunzip import inflate
from lemonade_deploy.domain.manifest import Manifest, of_tree
from lemonade_deploy.domain.tree_writer import TreeWriter
from lemonade_deploy.domain.unpack import unpack

Members = list[tuple[tarfile.TarInfo, bytes]]


@pytest.fixture(params=["tar", "here"], autouse=True)
def who(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test with files that tar writes, and with files that are written beside it."""
    monkeypatch.setattr(tree_writer, "LARGE", 1 if request.param == "here" else 1 << 30)
    return str(request.param)


def lay(root: Path, members: Members) -> Manifest:
    with TreeWriter(str(root)) as writer:
        manifest = unpack(inflate([tar_gz(members, format=tarfile.GNU_FORMAT)]), writer)
        writer.close()
    assert of_tree(str(root)).text() == manifest.text()
    return manifest


def test_long_and_odd_names(tmp_path: Path) -> None:
    folder = "/".join(["a" * 60] * 3)
    odd = "caf\udce9 *[x]\\n -C --absolute-names"
    lay(
        tmp_path,
        [
            (info(f"{folder}/file"), b"deep"),
            (info(f"{folder}/again", tarfile.LNKTYPE, target=f"{folder}/file"), b""),
            (info("link", tarfile.SYMTYPE, target=f"{folder}/file"), b""),
            (info(odd), b"odd"),
            (info("-rf"), b"dash"),
        ],
    )
    assert (tmp_path / folder / "again").read_bytes() == b"deep"
    assert (tmp_path / "link").read_bytes() == b"deep"
    assert os.stat(tmp_path / odd).st_size == 3


@pytest.mark.parametrize("size", [1, 511, 512, 513, 10_240, 3 << 20])
def test_every_size_arrives_with_mode_and_time(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    lay(tmp_path, [(info("f", mode=0o775), data), (info("empty"), b""), (info("last"), b"x")])
    status = (tmp_path / "f").stat()
    assert (tmp_path / "f").read_bytes() == data
    assert (stat.S_IMODE(status.st_mode), status.st_mtime) == (0o775, 1_700_000_000)


def test_a_member_that_replaces_another_is_the_last_word(tmp_path: Path) -> None:
    lay(
        tmp_path,
        [
            (info("target"), b"t"),
            (info("a"), b"first"),
            (info("a", tarfile.SYMTYPE, target="target"), b""),  # tar may not have written a yet
            (info("b", tarfile.SYMTYPE, target="target"), b""),
            (info("b"), b"file"),
            (info("c"), b"small"),
            (info("c"), b"x" * 2000),
            (info("d"), b"own"),
            (info("d", tarfile.LNKTYPE, target="target"), b""),
        ],
    )
    assert (tmp_path / "a").readlink() == Path("target")
    assert (tmp_path / "b").read_bytes() == b"file"
    assert (tmp_path / "c").stat().st_size == 2000
    assert (tmp_path / "target").read_bytes() == (tmp_path / "d").read_bytes() == b"t"


def test_options_of_the_users_tar_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAR_OPTIONS", "--strip-components=1 --no-such-option")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    lay(tmp_path, [(info("a/b"), b"x")])
    assert (tmp_path / "a/b").read_bytes() == b"x"


def test_what_cannot_be_written_is_an_error_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("in the way")
    with TreeWriter(str(tmp_path)) as writer, pytest.raises(OSError, match="d/f") as raised:
        writer.file("d/f", 0o644, 1, 0, iter([memoryview(b"x")]))
        writer.close()
    assert raised.value.errno == errno.ENOTDIR


def test_an_error_ends_the_stream_soon(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("in the way")
    sent = 0
    with TreeWriter(str(tmp_path)) as writer, pytest.raises(OSError, match="d/f"):
        for number in range(100_000):
            writer.file(f"d/f{number}", 0o644, 4096, 0, iter([memoryview(bytes(4096))]))
            sent += 1
    assert sent < 20_000


PROGRAM = """
import fcntl, os, sys, time
from lemonade_deploy.domain.tree_writer import TreeWriter
handle = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
fcntl.flock(handle, fcntl.LOCK_EX)
with TreeWriter(sys.argv[1], (handle,)) as writer:
    writer.hardlink("second", "first")
    writer.flush()
    print(writer._tar._process.pid, flush=True)
    time.sleep(60)
"""


def test_a_tar_that_outlives_a_killed_run_holds_its_lock(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "first").write_text("x")
    lock = tmp_path / "lock"
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path / "tree"), str(lock)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        tar = int(run.stdout.readline())
        os.kill(tar, signal.SIGSTOP)  # as if the disk kept it busy
        run.kill()
        run.wait()
    with lock.open("r+") as stream:
        with pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(tar, signal.SIGCONT)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
        else:
            pytest.fail("tar never ended")
