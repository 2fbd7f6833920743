# SPDX-License-Identifier: Apache-2.0
"""The depot itself: fetched once, whole after every kill, served to holders of its token, cleaned."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bundle_host import as_json
from depot_server import TOKEN, bring
from nasty import POLICY, TAG, Nasty, no_ranges, redirect, serving, spoiled, status

from lemonade_deploy.depot import collect, serve, store
from lemonade_deploy.domain.bundle_fetch import WrongDigest
from lemonade_deploy.domain.bundle_sources import Place
from lemonade_deploy.domain.fetch import Download, FetchError
from lemonade_deploy.domain.lock import Release, document, parse

OLD = "vllm0.1-rocm7-gfx1151"

pytestmark = pytest.mark.usefixtures("small_parts")


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


def test_urls_survive_the_lock(release: Release) -> None:
    assert parse(document({release.tag: release}))[release.tag].assets[0].url == release.assets[0].url
