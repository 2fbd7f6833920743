# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random points: `current` is the old bundle or the new one, and the next run converges."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bundle_host import Box, as_json, serve_chunks
from nasty import Handler, answer, bundle_members, publish, serving, tar_gz

from lemonade_deploy.depot import pack
from lemonade_deploy.domain.bundle import read_tree
from lemonade_deploy.domain.lock import Release
from lemonade_deploy.domain.manifest import of_tree

OLD, NEW = "vllm1-rocm7-gfx1151", "vllm2-rocm7-gfx1151"


def slowly(handler: Handler, body: bytes, start: int) -> None:
    """An answer that takes a moment, so that a kill often hits it."""
    time.sleep(0.05)
    answer(handler, body, start)


def kill_after(argv: list[str], seconds: float) -> None:
    """Start a run and kill it, unless it is quicker."""
    victim = subprocess.Popen(argv)
    try:
        victim.wait(seconds)
    except subprocess.TimeoutExpired:
        victim.kill()
        victim.wait()


def assert_old_or_new(box: Box, releases: tuple[Release, ...]) -> None:
    """What has a name is whole, and one of them is current."""
    for release in releases:
        tree = read_tree(box.host, release.tag)
        assert release.tree is not None
        assert tree is None or of_tree(str(box.place(tree.name))).digest() == release.tree.digest
    assert box.current in (OLD, NEW)
    assert read_tree(box.host, str(box.current)) is not None


def go_back(box: Box, old: Release) -> None:
    """Make the old bundle current again and forget the new one."""
    box.run(old)
    shutil.rmtree(box.place(NEW))


@pytest.mark.parametrize(
    ("source", "kills"),
    [
        ("upstream", 12),
        ("depot", 6),
        pytest.param("upstream", 50, marks=pytest.mark.full),
        pytest.param("depot", 50, marks=pytest.mark.full),
    ],
)
def test_killed_anywhere_it_is_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, kills: int
) -> None:
    chance = random.Random(kills)
    with serving() as server:
        server.moves["*"] = [slowly] * 10_000
        box = Box(tmp_path / "host", server.url)
        old = publish(server, tar_gz(bundle_members(1)), tag=OLD)[0]
        new = publish(server, tar_gz(bundle_members(2, 3_000_000)), tag=NEW)[0]
        entry = tmp_path / "new.json"
        entry.write_text(as_json(new))
        if source == "depot":
            monkeypatch.setattr(pack, "PLAIN", 300_000)
            serve_chunks(server, new, tmp_path / "depot")
            monkeypatch.setenv("AS_DEPOT", "1")
        program = Path(__file__).with_name("bundle_host.py")
        argv = [sys.executable, str(program), str(box.root), server.url, str(entry), "1"]
        box.run(old)
        began = time.monotonic()
        subprocess.run(argv, check=True)
        whole_run = time.monotonic() - began
        go_back(box, old)
        unfinished = 0
        for attempt in range(4 * kills):
            if attempt >= kills and unfinished:  # on a busy machine the right moment is hard to hit
                break
            # The first half is the start of Python.
            kill_after(argv, chance.uniform(0.4, 1.0) * whole_run)
            assert_old_or_new(box, (old, new))
            unfinished += bool(box.cached() or box.place(f"{NEW}.partial").exists())
            if box.current == NEW:
                go_back(box, old)
        assert unfinished > 0, "no kill hit the interesting part"
        box.run(new, keep=0)
        box.assert_whole(new)


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.full)])
def test_killed_before_each_change_of_the_file_system(tmp_path: Path, stride: int) -> None:
    program = Path(__file__).with_name("bundle_host.py")
    with serving() as server:
        box = Box(tmp_path / "host", server.url)
        old = publish(server, tar_gz(bundle_members(1, 50_000)), tag=OLD)[0]
        new = publish(server, tar_gz(bundle_members(2, 50_000)), tag=NEW)[0]
        entry = tmp_path / "new.json"
        entry.write_text(as_json(new))
        argv = [sys.executable, str(program), str(box.root), server.url, str(entry), "0"]
        box.run(old)
        whole = subprocess.run(argv, check=True, capture_output=True, text=True)
        steps = int(whole.stdout)
        assert steps > 30
        states = set()
        for step in [*range(1, steps - 5, stride), *range(steps - 5, steps + 1)]:
            shutil.rmtree(box.root)
            box.root.mkdir()
            box.run(old)
            killed = subprocess.run([*argv, str(step)], check=False)
            assert killed.returncode == -9
            assert_old_or_new(box, (old, new))
            states.add((box.current, box.place(NEW).exists()))
            box.run(new, keep=0)
            box.assert_whole(new)
        assert states == {(OLD, False), (OLD, True), (NEW, True)}
