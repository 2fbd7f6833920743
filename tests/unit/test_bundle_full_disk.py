# SPDX-License-Identifier: Apache-2.0
"""A disk that really is full, at every stage: numbers, the old bundle untouched, the next run goes on."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle_host import Box, serve_chunks
from nasty import POLICY, Nasty, bundle_members, publish, tar_gz

from lemonade_deploy.domain import bundle_fetch, bundle_space, tree_writer
from lemonade_deploy.domain.bundle_sources import Place
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.lock import Release
from lemonade_deploy.domain.manifest import of_tree
from lemonade_deploy.domain.module import Refused
from lemonade_deploy.domain.paths import BUNDLE_CURRENT

DISK = 8 << 20  # bytes of the host's file system
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")


@pytest.fixture
def box(tmp_path: Path, server: Nasty, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """A host on a tmpfs; the check beforehand is passed, as if others filled the disk meanwhile."""
    root = tmp_path / "host"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "lemonade-test", root], check=True)
    monkeypatch.setattr(bundle_space, "RESERVE", 0)
    try:
        yield Box(root, server.url)
    finally:
        subprocess.run(["umount", root], check=True)


def leave(box: Box, free: int) -> Path:
    """Fill the host's disk but for *free* bytes; gives the ballast."""
    state = os.statvfs(box.root)
    ballast = box.root / "ballast"
    with ballast.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, state.f_bavail * state.f_frsize - free)
    return ballast


def releases(server: Nasty) -> tuple[Release, Release]:
    """Two releases that take some 620 KiB of disk (their blobs do not compress)."""
    old, new = (tar_gz(bundle_members(n, blob=600_000)) for n in (1, 2))
    return publish(server, old, tag="vllm1-rocm7-gfx1151")[0], publish(server, new)[0]


def assert_old_serves(box: Box, old: Release) -> None:
    assert box.current == old.tag
    assert old.tree is not None
    assert of_tree(str(box.place(old.tag))).digest() == old.tree.digest
    assert sorted(box.host.listdir(os.path.dirname(BUNDLE_CURRENT))) == sorted(["current", old.tag])


@needs_root
@pytest.mark.parametrize(("source", "large"), [("upstream", 1 << 20), ("depot", 1 << 20), ("depot", 1000)])
@pytest.mark.parametrize("free_kib", [0, 8, 64, 300, 500, 580, 600])
def test_the_disk_fills_at_any_stage(
    tmp_path: Path,
    box: Box,
    server: Nasty,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    large: int,
    free_kib: int,
) -> None:
    monkeypatch.setattr(tree_writer, "LARGE", large)
    old, new = releases(server)
    box.run(old)
    if source == "depot":
        serve_chunks(server, new, tmp_path / "depot")
        box.places = (Place("depot", server.url),)
    with monkeypatch.context() as passed:
        passed.setattr(bundle_space, "check_space", lambda *_: None)
        ballast = leave(box, free_kib << 10)
        with pytest.raises(Refused, match=r"disk filled up.* MiB are needed .* MiB are free now") as refused:
            box.run(new)
    assert "not touched" in refused.value.remedy
    assert_old_serves(box, old)
    ballast.unlink()
    box.run(new)
    assert new.tree is not None
    assert of_tree(str(box.place(new.tag))).digest() == new.tree.digest
    assert box.current == new.tag


@needs_root
def test_a_disk_that_is_full_beforehand_is_said_before_the_first_byte(box: Box, server: Nasty) -> None:
    old, new = releases(server)
    box.run(old)
    leave(box, 300 << 10)
    server.requests.clear()
    with pytest.raises(Refused, match=r"Not enough disk.*needs 1 MiB.* 0 MiB are free"):
        box.run(new)
    assert server.requests == []
    assert_old_serves(box, old)


@needs_root
@pytest.mark.parametrize("place", ["", "host/tmp/"])
def test_the_disk_that_is_named_is_the_one_that_is_full(
    tmp_path: Path, box: Box, server: Nasty, place: str
) -> None:
    """The bundles' own, or another: where the static checks work, or downloads are kept."""
    name = tmp_path / place / "gone" / "sitecustomize.py"

    def check(_host: Host, _tree: str, _family: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(name))

    old, new = releases(server)
    box.run(old)
    box.check = check
    with pytest.raises(Refused, match="filled up") as refused:
        box.run(new)
    own = "needed below /opt/lemonade-deploy" in refused.value.found
    assert own == bool(place)
    assert (f"The disk of {tmp_path} filled up" in refused.value.found) != own
    assert_old_serves(box, old)


def test_a_download_that_cannot_be_kept_says_where(
    tmp_path: Path, server: Nasty, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    release = releases(server)[0]
    monkeypatch.setattr(bundle_fetch, "_write", full)
    source = bundle_fetch.Source(release, server.url, str(tmp_path), POLICY)
    with pytest.raises(OSError, match="No space") as raised:
        list(source.chunks())
    assert raised.value.filename == str(tmp_path / release.assets[0].name)
