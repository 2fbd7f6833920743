# SPDX-License-Identifier: Apache-2.0
"""The depot: fetched once, stored as zstd chunks, served to hosts that verify and fall back."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle_host import Box, as_json
from nasty import (
    POLICY,
    TAG,
    Nasty,
    bundle_members,
    no_ranges,
    publish,
    redirect,
    serving,
    spoiled,
    status,
    tar_gz,
)

from lemonade_deploy.depot import collect, fetch, pack, serve, store
from lemonade_deploy.domain import bundle_sources, depot_index, unzstd
from lemonade_deploy.domain.bundle_fetch import WrongDigest
from lemonade_deploy.domain.bundle_sources import Place, places
from lemonade_deploy.domain.fetch import Download, FetchError
from lemonade_deploy.domain.lock import Release, document, parse
from lemonade_deploy.domain.module import Refused

TOKEN = "t0ken"
OLD = "vllm0.1-rocm7-gfx1151"
NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody answers


@pytest.fixture
def release(server: Nasty) -> Release:
    made = publish(server, tar_gz(bundle_members()))[0]
    assets = tuple(dataclasses.replace(a, url=f"{server.url}/{TAG}/{a.name}") for a in made.assets)
    return dataclasses.replace(made, assets=assets)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "SEGMENT", 10_000)
    monkeypatch.setattr(pack, "PLAIN", 50_000)


def bring(folder: Path, release: Release) -> None:
    for asset in release.assets:
        fetch.fetch(release, asset, asset.url, folder / release.tag, policy=POLICY)


@pytest.fixture
def depot(tmp_path: Path, release: Release) -> Iterator[tuple[Path, Place]]:
    """A filled depot that is served, and its place."""
    folder = tmp_path / "depot"
    bring(folder, release)
    pack.pack(folder, release)
    with running(folder) as url:
        yield folder, Place("depot", url, TOKEN)


class running:
    """A depot's server in a thread."""

    def __init__(self, folder: Path, tls: tuple[str, str] | None = None) -> None:
        self.server = serve.server(folder, ("127.0.0.1", 0), TOKEN, tls)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def box_of(tmp_path: Path, *chosen: Place) -> Box:
    box = Box(tmp_path / "host", NOWHERE)
    box.places = chosen
    return box


def test_fetched_once_in_ranges(tmp_path: Path, server: Nasty, release: Release) -> None:
    bring(tmp_path, release)
    for asset in release.assets:
        assert (tmp_path / TAG / asset.name).stat().st_size == asset.size
    assert {path for path in os.listdir(tmp_path / TAG)} == {asset.name for asset in release.assets}
    spans = {span for _path, span in server.requests}
    assert "bytes=10000-19999" in spans
    server.requests.clear()
    bring(tmp_path, release)
    assert server.requests == []


def test_a_server_without_ranges_does(tmp_path: Path, server: Nasty, release: Release) -> None:
    for asset in release.assets:
        server.moves[f"/{TAG}/{asset.name}"] = [no_ranges] * 9
    bring(tmp_path, release)
    paths = [path for path, _span in server.requests]
    assert len(paths) <= 2 * len(release.assets)


def test_other_bytes_than_locked_are_refused_and_gone(
    tmp_path: Path, server: Nasty, release: Release
) -> None:
    asset = release.assets[1]
    server.moves[f"/{TAG}/{asset.name}"] = [spoiled] * 99
    with pytest.raises(WrongDigest, match=asset.sha256):
        bring(tmp_path, release)
    assert not list((tmp_path / TAG).glob(f"{asset.name}*"))


def test_a_broken_connection_goes_on_where_it_was(tmp_path: Path, server: Nasty, release: Release) -> None:
    asset = release.assets[0]
    server.moves[f"/{TAG}/{asset.name}"] = [status(503)] * 99
    with pytest.raises(FetchError):
        bring(tmp_path, release)
    server.moves.clear()
    bring(tmp_path, release)


PROGRAM = """
import json, sys, time
from pathlib import Path
sys.path[:0] = {path!r}
from lemonade_deploy.depot import fetch
from lemonade_deploy.domain.lock import parse
from nasty import POLICY
fetch.SEGMENT = 10_000
(release,) = parse(json.loads(Path({lock!r}).read_text())).values()
for asset in release.assets:
    fetch.fetch(release, asset, asset.url, Path({folder!r}), lambda *_: time.sleep(0.002), policy=POLICY)
"""


def test_killed_again_and_again_it_arrives(tmp_path: Path, server: Nasty, release: Release) -> None:
    lock = tmp_path / "lock.json"
    lock.write_text(as_json(release))
    folder = tmp_path / "depot" / TAG
    program = PROGRAM.format(path=[str(Path(__file__).parent)], lock=str(lock), folder=str(folder))
    kills = 0
    for wait in range(6):
        process = subprocess.Popen([sys.executable, "-c", program])
        until = time.monotonic() + 20
        before = store.size_of(folder) if folder.is_dir() else 0
        while process.poll() is None and time.monotonic() < until:
            if folder.is_dir() and store.size_of(folder) > before + wait * 3000:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
        kills += process.wait() == -signal.SIGKILL
    assert kills >= 3
    bring(tmp_path / "depot", release)
    for asset in release.assets:
        assert store.digest_of(folder / asset.name) == asset.sha256


def test_a_host_takes_the_chunks_and_keeps_no_copy(
    tmp_path: Path, server: Nasty, release: Release, depot: tuple[Path, Place]
) -> None:
    folder, place = depot
    index = store.index_of(folder, release)
    assert index is not None and len(index.chunks) > 2
    server.requests.clear()
    box = box_of(tmp_path, place, Place("upstream", server.url))
    box.run(release)
    box.assert_whole(release)
    assert box.stats.source == f"depot {place.url}"
    assert box.stats.fetched == sum(chunk.size for chunk in index.chunks)
    assert server.requests == []
    assert box.stats.notes == []


def test_a_depot_that_is_away_leads_to_the_mirror_and_is_said(
    tmp_path: Path, server: Nasty, release: Release
) -> None:
    box = box_of(tmp_path, Place("depot", NOWHERE, TOKEN), Place("mirror", server.url))
    box.run(release)
    box.assert_whole(release)
    assert box.stats.source == f"mirror {server.url}"
    assert box.stats.notes[0].startswith(f"depot {NOWHERE} could not be used: ")


@pytest.mark.parametrize("place", ["depot", "mirror"])
def test_a_place_that_never_answers_is_passed_over_soon(
    tmp_path: Path, server: Nasty, release: Release, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(bundle_sources, "KNOCK", 0.2)
    with socket.socket() as silent:  # it takes connections, and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        box = box_of(tmp_path, Place(place, url, TOKEN), Place("upstream", server.url))
        began = time.monotonic()
        box.run(release)
    assert time.monotonic() - began < POLICY.timeout
    box.assert_whole(release)
    assert f"{place} {url} could not be used: " in box.stats.notes[0]
    assert "timed out" in box.stats.notes[0]


def test_a_mirror_without_the_release_is_passed_over(tmp_path: Path, server: Nasty, release: Release) -> None:
    with serving() as empty:
        box = box_of(tmp_path, Place("mirror", empty.url), Place("upstream", server.url))
        box.run(release)
        assert "HTTP 404" in box.stats.notes[0]
        assert len(empty.requests) == 1
    box.assert_whole(release)


def test_no_place_at_all_names_each(tmp_path: Path, release: Release) -> None:
    box = box_of(tmp_path, Place("depot", NOWHERE), Place("mirror", "http://127.0.0.1:10"))
    with pytest.raises(Refused, match=rf"No place has.*depot {NOWHERE}: .*mirror http://127.0.0.1:10: "):
        box.run(release)
    assert box.current is None


def test_a_wrong_token_leads_on(
    tmp_path: Path, server: Nasty, release: Release, depot: tuple[Path, Place]
) -> None:
    wrong = dataclasses.replace(depot[1], token="guessed")
    box = box_of(tmp_path, wrong, Place("upstream", server.url))
    box.run(release)
    assert "HTTP 401" in box.stats.notes[0]


@pytest.mark.parametrize("damage", ["chunk", "exchanged", "index"])
def test_a_damaged_depot_is_never_installed(
    tmp_path: Path, server: Nasty, release: Release, depot: tuple[Path, Place], damage: str
) -> None:
    folder, place = depot
    index = store.index_of(folder, release)
    assert index is not None
    first = folder / TAG / index.chunks[0].name
    if damage == "chunk":
        first.write_bytes(b"x" * index.chunks[0].size)
    elif damage == "exchanged":  # sound chunks and index, of another archive
        chunks = (index.chunks[0], *index.chunks[:1], *index.chunks[2:])
        (folder / TAG / depot_index.NAME).write_text(dataclasses.replace(index, chunks=chunks).text())
    else:
        (folder / TAG / depot_index.NAME).write_text("{}")
    box = box_of(tmp_path, place, Place("upstream", server.url))
    box.run(release)
    box.assert_whole(release)
    assert place.url in box.stats.notes[0]
    assert box.stats.source.startswith("depot" if damage == "index" else "upstream")


def test_without_libzstd_the_releases_own_files_come_from_the_depot(
    tmp_path: Path, release: Release, depot: tuple[Path, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unzstd, "available", lambda: False)
    box = box_of(tmp_path, depot[1])
    box.run(release)
    box.assert_whole(release)
    assert box.stats.fetched == release.size
    assert "no libzstd" in box.stats.notes[0]


def test_the_server_gives_finished_files_to_holders_of_the_token_only(
    release: Release, depot: tuple[Path, Place]
) -> None:
    folder, place = depot
    (folder / TAG / "x.partial").write_text("half")
    (folder / "token").write_text("secret")
    (folder / TAG / "link").symlink_to("/etc/passwd")

    def code(path: str, token: str = TOKEN) -> int:
        try:
            return 200 if Download(f"{place.url}/{path}", token=token, policy=POLICY).exists() else 404
        except FetchError as error:
            return error.status

    name = release.assets[0].name
    assert code(f"{TAG}/{name}") == 200
    assert code(f"{TAG}/{name}", "") == 401
    for path in ("token", f"{TAG}/x.partial", f"{TAG}/link", TAG, "", "%2e%2e/x", f"{TAG}/..%2f..%2ftoken"):
        assert code(path) == 404, path


def test_ranges_of_the_server(release: Release, depot: tuple[Path, Place]) -> None:
    folder, place = depot
    asset = release.assets[0]
    rest = b"".join(Download(f"{place.url}/{TAG}/{asset.name}", token=TOKEN).chunks(asset.size - 7))
    assert rest == (folder / TAG / asset.name).read_bytes()[-7:]


def test_the_token_is_private_and_stays(tmp_path: Path) -> None:
    token = serve.token_of(tmp_path / "new")
    assert len(token) > 30
    assert serve.token_of(tmp_path / "new") == token
    assert (tmp_path / "new" / "token").stat().st_mode & 0o777 == 0o600


def test_the_token_does_not_follow_a_redirect(server: Nasty) -> None:
    with serving() as other:
        other.put("t", "f", b"data")
        server.moves["/t/f"] = [redirect(f"{other.url}/t/f")]
        download = Download(f"{server.url}/t/f", token=TOKEN, policy=POLICY)
        assert b"".join(download.chunks()) == b"data"
        assert (server.tokens, other.tokens) == ([f"Bearer {TOKEN}"], [None])


def test_gc_says_what_it_frees(tmp_path: Path, release: Release, depot: tuple[Path, Place]) -> None:
    folder = depot[0]
    shutil.copytree(folder / TAG, folder / OLD)
    (folder / TAG / "99999.zst").write_bytes(b"stray")
    expected = [(OLD, store.size_of(folder / OLD)), (f"{TAG}/99999.zst", 5)]
    assert sorted(collect.collect(folder, [release], check=True)) == sorted(expected)
    assert (folder / OLD).is_dir()
    assert sorted(collect.collect(folder, [release])) == sorted(expected)
    assert collect.collect(folder, [release]) == []
    assert store.index_of(folder, release) is not None


def test_a_policy_without_a_place_is_refused() -> None:
    with pytest.raises(Refused, match="vllm_rocm_sources"):
        places(["depot"], "http://up")
    assert [str(p) for p in places(["mirrors", "depot"], "u", ["m1", "m2"], "d", "t")] == [
        "mirror m1",
        "mirror m2",
        "depot d",
    ]
    assert set(bundle_sources.KINDS) == {"depot", "mirrors", "upstream"}


def test_urls_survive_the_lock(release: Release) -> None:
    assert parse(document({release.tag: release}))[release.tag].assets[0].url == release.assets[0].url
