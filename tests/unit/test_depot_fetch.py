# SPDX-License-Identifier: Apache-2.0
"""Fetching into a depot from a server that misbehaves, over parallel ranges, killed at any byte."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nasty import (
    POLICY,
    TAG,
    Handler,
    Move,
    Nasty,
    bundle_members,
    drip,
    length,
    no_ranges,
    part,
    publish,
    redirect,
    serving,
    status,
    tar_gz,
)

from lemonade_deploy.depot import fetch, store
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.lock import Asset, Release

DATA = random.Random(5).randbytes(300_000)
ASSET = Asset("blob", len(DATA), hashlib.sha256(DATA).hexdigest())
PATH = "/blob"


@pytest.fixture
def server() -> Iterator[Nasty]:
    with serving() as running:
        running.files[PATH] = DATA
        yield running


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "SEGMENT", 20_000)


def bring(server: Nasty, folder: Path, jobs: int = 4) -> bytes:
    return fetch.bring(ASSET, server.url + PATH, folder, jobs=jobs, policy=POLICY).read_bytes()


def cut_part(after: int) -> Move:
    """Promise the part that was asked for, send some of it, close."""

    def move(handler: Handler, body: bytes, start: int) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        handler.send_header("Content-Length", str(len(body) - start))
        handler.end_headers()
        handler.wfile.write(body[start : start + after])
        handler.close_connection = True

    return move


NASTY: dict[str, list[Move]] = {
    "cut at random bytes": [cut_part(n) for n in (0, 1, 777, 19_999, 5)],
    # One each: two odd answers in a row to the same part are final (fetch.ODD_LIMIT), and which part gets
    # which answer is the threads' luck.
    "content-length too short": [length(10)],
    "content-length too long": [length(len(DATA) + 9)],
    "no ranges for once": [no_ranges] * 3,
    "416": [status(416)],
    "429": [status(429, Retry_After="0")] * 2,
    "5xx": [status(500), status(502), status(503), status(504)],
    "slow drip": [drip],
}


@pytest.mark.parametrize("moves", NASTY.values(), ids=NASTY)
def test_hiccups_in_any_part_do_no_harm(server: Nasty, tmp_path: Path, moves: list[Move]) -> None:
    # The first answer is that to the question for ranges.
    server.moves[PATH] = [lambda handler, body, _start: part(handler, body, 0, 1), *moves]
    assert bring(server, tmp_path) == DATA
    assert server.moves[PATH] == []
    assert os.listdir(tmp_path) == ["blob"]


def test_a_redirect_to_another_host(server: Nasty, tmp_path: Path) -> None:
    with serving() as other:
        other.files["/there"] = DATA
        server.moves[PATH] = [redirect(f"{other.url}/there")] * 99
        assert bring(server, tmp_path) == DATA
        assert len({span for _path, span in other.requests}) > 10


def test_each_byte_comes_once(server: Nasty, tmp_path: Path) -> None:
    """Ranges are asked for with their end: no connection is broken off in its middle."""
    bring(server, tmp_path)
    spans = sorted(
        tuple(map(int, span.removeprefix("bytes=").split("-")))
        for _path, span in server.requests
        if span and span != "bytes=0-0"
    )
    assert spans == [(n, min(n + 19_999, 299_999)) for n in range(0, 300_000, 20_000)]


def test_a_truncated_file_is_told_with_numbers(server: Nasty, tmp_path: Path) -> None:
    server.files[PATH] = DATA[:-1000]
    with pytest.raises(FetchError, match="expected 300000 bytes, the server has 299000"):
        bring(server, tmp_path)
    server.files[PATH] = DATA
    assert bring(server, tmp_path) == DATA


def test_a_missing_part_is_named_and_the_others_stay(server: Nasty, tmp_path: Path) -> None:
    release, paths = publish(server, tar_gz(bundle_members()))
    del server.files[paths[2]]

    def all_of_it() -> None:
        for asset, path in zip(release.assets, paths, strict=True):
            fetch.fetch(release, asset, server.url + path.replace("+", "%2B"), tmp_path, policy=POLICY)

    with pytest.raises(FetchError, match=r"part03-of-03\.tar\.gz: HTTP 404"):
        all_of_it()
    assert {name for name in os.listdir(tmp_path) if name.endswith(".gz")} == {
        asset.name for asset in release.assets[:2]
    }


def test_damage_once_is_fetched_once_more(server: Nasty, tmp_path: Path) -> None:
    wrong = bytearray(DATA)
    wrong[150_000] ^= 1
    server.files[PATH] = bytes(wrong)
    told = iter([None] * 40)

    def heal(_name: str, done: int, _size: int | None) -> None:
        next(told, None)
        if done == len(DATA):
            server.files[PATH] = DATA

    place = fetch.bring(ASSET, server.url + PATH, tmp_path, heal, policy=POLICY)
    assert place.read_bytes() == DATA


def test_a_stale_note_of_progress_is_no_hole(server: Nasty, tmp_path: Path) -> None:
    """Killed between two removals: notes without the bytes they speak of."""
    (tmp_path / f"blob{store.PROGRESS}").write_bytes(fetch._NUMBER.pack(20_000) * 15)
    assert bring(server, tmp_path) == DATA
    assert len(server.requests) == 1 + 15  # and nothing twice


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_there_it_arrives_whole(
    server: Nasty, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any state that a kill can leave: each segment some bytes in, its note at or behind them."""
    folder = tmp_path_factory.mktemp("killed")
    content, notes = bytearray(len(DATA)), b""
    for start in range(0, len(DATA), 20_000):
        written = data.draw(st.integers(0, 20_000))
        noted = data.draw(st.integers(0, written))
        content[start : start + written] = DATA[start : start + written]
        notes += fetch._NUMBER.pack(noted)
    (folder / f"blob{store.PARTIAL}").write_bytes(content[: data.draw(st.sampled_from([len(DATA), 250_000]))])
    (folder / f"blob{store.PROGRESS}").write_bytes(notes[: data.draw(st.integers(0, len(notes)))])
    assert bring(server, folder) == DATA


PROGRAM = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from nasty import POLICY
from lemonade_deploy.depot import fetch
from lemonade_deploy.domain.lock import Asset
fetch.SEGMENT = 20_000
fetch.bring(Asset("blob", {size}, {sha256!r}), {url!r}, Path({folder!r}), policy=POLICY)
"""


def slowly(handler: Handler, body: bytes, start: int) -> None:
    """A part, in pieces with pauses: a kill hits the middle of it."""
    end = min(start + 20_000, len(body))
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body)}")
    handler.send_header("Content-Length", str(end - start))
    handler.end_headers()
    for at in range(start, end, 4_000):
        handler.wfile.write(body[at : min(at + 4_000, end)])
        handler.wfile.flush()
        time.sleep(0.02)


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.full)])
def test_killed_at_random_points_it_goes_on(server: Nasty, tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    words = {"tests": str(Path(__file__).parent), "size": ASSET.size, "sha256": ASSET.sha256}
    program = PROGRAM.format(**words, url=server.url + PATH, folder=str(tmp_path))
    hits = 0
    for _kill in range(kills):
        server.moves[PATH] = [lambda h, body, _start: part(h, body, 0, 1), *[slowly] * 99]
        victim = subprocess.Popen([sys.executable, "-c", program])
        until = time.monotonic() + 20
        asked = len(server.requests)
        while len(server.requests) < asked + 2 and victim.poll() is None:  # it is at work
            assert time.monotonic() < until
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))
        victim.send_signal(signal.SIGKILL)
        hits += victim.wait() == -signal.SIGKILL and not (tmp_path / "blob").exists()
        (tmp_path / "blob").unlink(missing_ok=True)
    assert hits > kills // 3
    server.moves.clear()
    server.requests.clear()
    assert bring(server, tmp_path) == DATA
    # What the killed ones noted as there is there: nothing had to be started anew.
    assert len(server.requests) <= 1 + 15


def test_a_release_is_fetched_by_several_connections_at_once(
    server: Nasty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release: Release = publish(server, tar_gz(bundle_members()))[0]
    asset = release.assets[0]
    at_once, most = [0], [0]

    def counted(handler: Handler, body: bytes, start: int) -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.05)
        part(handler, body, start, start + 20_000)
        at_once[0] -= 1

    path = f"/{TAG}/{asset.name}"
    server.moves[path] = [lambda h, body, _start: part(h, body, 0, 1), *[counted] * 99]
    fetch.fetch(release, asset, server.url + path.replace("+", "%2B"), tmp_path, jobs=3, policy=POLICY)
    assert most[0] == 3
    monkeypatch.undo()


def test_backoff_grows_up_to_its_limit(
    server: Nasty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.moves[PATH] = [status(503)] * 20
    policy, pauses = dataclasses.replace(POLICY, backoff=2, backoff_max=20), list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(FetchError, match="6 attempts"):
        fetch.bring(ASSET, server.url + PATH, tmp_path, policy=policy)
    usual = [2, 4, 8, 16, 20]  # each with a spread of a quarter
    assert all(0.75 <= pause / wanted <= 1.25 for pause, wanted in zip(pauses, usual, strict=True))
