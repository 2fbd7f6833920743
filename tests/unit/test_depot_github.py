# SPDX-License-Identifier: Apache-2.0
"""GitHub's own digests: kept beside ours, and a contradiction stops the lock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nasty import POLICY, TAG, Nasty, bundle_members, publish, status, tar_gz
from typer.testing import CliRunner

from lemonade_deploy.cli import depot
from lemonade_deploy.depot import github, lockfile
from lemonade_deploy.depot.lock import merge
from lemonade_deploy.domain.lock import LockError, Release, document, parse
from lemonade_deploy.lab.services import github as stand_in
from lemonade_deploy.lab.services.answers import Request


@pytest.fixture
def release(server: Nasty) -> Release:
    return publish(server, tar_gz(bundle_members()))[0]


def tell(server: Nasty, release: Release, **other: Any) -> str:
    """Serve the API's answer; gives the API's address."""
    assets = [{"name": a.name, "digest": other.get(a.name, f"sha256:{a.sha256}")} for a in release.assets]
    server.files[f"/api/releases/tags/{TAG}"] = json.dumps({"assets": assets}).encode()
    return f"{server.url}/api"


def lock(server: Nasty, path: Path, api: str) -> tuple[int, str]:
    words = ["lock", TAG, "--lock", str(path), "--base-url", server.url, "--api", api]
    done = CliRunner().invoke(depot.app, words, standalone_mode=False)
    assert done.exception is None, done.exception
    return done.return_value, done.stderr


def test_the_digests_are_kept_as_evidence(server: Nasty, release: Release, tmp_path: Path) -> None:
    path = tmp_path / "l.lock"
    code, said = lock(server, path, tell(server, release))
    assert code == 0
    assert "GitHub's API gives digests for 3 of its 3 file(s)" in said
    assert path.read_text().count("upstream_sha256: ") == 3
    entry = lockfile.read(path)[TAG]
    assert [asset.upstream for asset in entry.assets] == [asset.sha256 for asset in release.assets]
    # An API that is silent later takes nothing away.
    assert lock(server, path, f"{server.url}/nowhere")[0] == 0
    assert lockfile.read(path)[TAG] == entry


def test_a_contradiction_shows_both_and_locks_nothing(
    server: Nasty, release: Release, tmp_path: Path
) -> None:
    other = {release.assets[1].name: "sha256:" + "1" * 64}
    code, said = lock(server, tmp_path / "l.lock", tell(server, release, **other))
    assert code == 1
    assert release.assets[1].sha256 in said
    assert "1" * 64 in said
    assert not (tmp_path / "l.lock").exists()


@pytest.mark.parametrize("digest", [None, "", "sha512:" + "1" * 128, 7])
def test_old_assets_have_none(server: Nasty, release: Release, tmp_path: Path, digest: Any) -> None:
    none = {asset.name: digest for asset in release.assets}
    code, said = lock(server, tmp_path / "l.lock", tell(server, release, **none))
    assert code == 0
    assert "gives no digests" in said
    assert "upstream_sha256" not in (tmp_path / "l.lock").read_text()


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"assets": 7}', b'{"assets": [7]}'])
def test_an_api_that_says_nonsense_is_no_answer(server: Nasty, answer: bytes) -> None:
    server.files[f"/releases/tags/{TAG}"] = answer
    found, said = github.digests(TAG, server.url, POLICY)
    assert found == {}
    assert "does not answer" in said


def test_a_rate_limit_is_no_answer(server: Nasty, release: Release) -> None:
    server.moves[f"/api/releases/tags/{TAG}"] = [status(403)]
    found, said = github.digests(TAG, tell(server, release), POLICY)
    assert found == {}
    assert "403" in said


def test_evidence_may_come_later_than_the_bytes(release: Release) -> None:
    seen = github.compared(release, {asset.name: asset.sha256 for asset in release.assets})
    assert merge({TAG: release}, seen)[TAG] == seen
    assert merge({TAG: seen}, release)[TAG] == seen
    assert parse(document({TAG: seen}))[TAG] == seen


def test_a_lock_that_contradicts_itself_is_refused(release: Release) -> None:
    entry = document({TAG: release})
    entry["releases"][TAG]["assets"][0]["upstream_sha256"] = "0" * 64
    with pytest.raises(LockError, match=r"assets\[0\]\.upstream_sha256: is 0+, but sha256 is"):
        parse(entry)


@pytest.mark.parametrize("silent", [False, True])
def test_the_labs_stand_in_speaks_the_same_language(tmp_path: Path, release: Release, silent: bool) -> None:
    stand_in.furnish(tmp_path)
    folder = tmp_path / "github.com" / stand_in.REPOSITORY / "releases" / "download" / TAG
    folder.mkdir(parents=True)
    (folder / "a.tar.gz").write_bytes(b"a")
    site = tmp_path / stand_in.API_HOST
    if silent:
        (site / stand_in.NO_DIGESTS).touch()
    path = f"/repos/{stand_in.REPOSITORY}/releases/tags/{TAG}"
    given = stand_in.api(Request("GET", stand_in.API_HOST, path, {}), site)
    assert given.status == 200
    assert isinstance(given.body, bytes)
    (asset,) = json.loads(given.body)["assets"]
    assert asset["name"] == "a.tar.gz"
    assert (asset["digest"] is None) == silent
    assert stand_in.api(Request("GET", stand_in.API_HOST, path + "x/..", {}), site).status == 404
