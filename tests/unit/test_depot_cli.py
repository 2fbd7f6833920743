# SPDX-License-Identifier: Apache-2.0
"""The verbs of the depot: fetch, gc, export, import, serve."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from pathlib import Path

import pytest
from nasty import TAG, Nasty, bundle_members, publish, tar_gz

from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.depot import lockfile, store
from lemonade_deploy.domain.lock import FILE_NAME, Release
from lemonade_deploy.exits import Exit


@pytest.fixture
def release(server: Nasty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Release:
    """A locked release; the present folder holds its lock."""
    made = publish(server, tar_gz(bundle_members()))[0]
    assets = tuple(dataclasses.replace(a, url=f"{server.url}/{TAG}/{a.name}") for a in made.assets)
    made = dataclasses.replace(made, assets=assets)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lockfile.write(tmp_path / FILE_NAME, {made.tag: made})
    return made


def depot_of(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "lemonade-deploy" / "depot"


def test_fetch_export_import(tmp_path: Path, release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["depot", "export", "b.tar"]) == Exit.FAILED
    assert "depot fetch" in capsys.readouterr().err
    assert dispatch(["depot", "fetch", "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["releases"] == [release.tag]
    assert store.index_of(depot_of(tmp_path), release) is not None
    assert dispatch(["depot", "export", "b.tar"]) == Exit.OK
    other = tmp_path / "other"
    other.mkdir()
    arguments = ["--lock", str(other / FILE_NAME), "--depot", str(other / "depot")]
    assert dispatch(["depot", "import", "b.tar", *arguments]) == Exit.OK
    assert lockfile.read(other / FILE_NAME) == lockfile.read(tmp_path / FILE_NAME)
    assert store.index_of(other / "depot", release) is not None
    assert dispatch(["depot", "fetch", *arguments]) == Exit.OK


def test_an_import_that_contradicts_the_lock_touches_nothing(
    tmp_path: Path, release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["depot", "fetch"])
    dispatch(["depot", "export", "b.tar"])
    first = dataclasses.replace(release.assets[0], sha256="0" * 64)
    lockfile.write(
        tmp_path / FILE_NAME,
        {release.tag: dataclasses.replace(release, assets=(first, *release.assets[1:]))},
    )
    empty = tmp_path / "empty"
    assert dispatch(["depot", "import", "b.tar", "--depot", str(empty)]) == Exit.FAILED
    said = capsys.readouterr().err
    assert "0" * 64 in said
    assert release.assets[0].sha256 in said
    assert not empty.exists()


@pytest.mark.parametrize("name", ["../evil", "etc/x", f"{TAG}/unknown"])
def test_an_import_takes_only_what_its_lock_names(tmp_path: Path, release: Release, name: str) -> None:
    with tarfile.open("b.tar", "w") as tar:
        for member, data in ((FILE_NAME, (tmp_path / FILE_NAME).read_bytes()), (name, b"x")):
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    assert dispatch(["depot", "import", "b.tar", "--depot", "d"]) == Exit.FAILED
    assert not list(tmp_path.rglob("evil"))
    Path("b.tar").write_bytes(b"no tar")
    assert dispatch(["depot", "import", "b.tar", "--depot", "d"]) == Exit.USAGE


def test_damage_on_the_way_is_noticed(
    tmp_path: Path, release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["depot", "fetch"])
    dispatch(["depot", "export", "b.tar"])
    data = bytearray(Path("b.tar").read_bytes())
    data[len(data) // 2] ^= 1
    Path("b.tar").write_bytes(data)
    assert dispatch(["depot", "import", "b.tar", "--depot", "d"]) == Exit.FAILED
    assert "expected sha256" in capsys.readouterr().err


def test_gc(tmp_path: Path, release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["depot", "fetch"])
    stray = depot_of(tmp_path) / "vllm0.1-rocm7-gfx1151"
    stray.mkdir()
    (stray / "file").write_bytes(b"12345")
    assert dispatch(["depot", "gc", "--check"]) == Exit.CHANGES
    assert "Would free 5 bytes" in capsys.readouterr().err
    assert dispatch(["depot", "gc", "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["freed_bytes"] == 5
    assert not stray.exists()
    assert dispatch(["depot", "gc", "--check"]) == Exit.OK


@pytest.mark.parametrize(
    "words", [["fetch", "vllm9-rocm9"], ["fetch", "--lock", "none.lock"], ["serve", "--tls-cert", "x.pem"]]
)
def test_wrong_usage(release: Release, words: list[str]) -> None:
    assert dispatch(["depot", *words]) == Exit.USAGE
