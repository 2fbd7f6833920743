# SPDX-License-Identifier: Apache-2.0
"""A depot against hostile files, odd lock files, odd addresses and odd requests."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from nasty import POLICY, TAG, bundle_members, tar_gz

from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.depot import lockfile, serve, store
from lemonade_deploy.domain import depot_index
from lemonade_deploy.domain.fetch import Download, FetchError
from lemonade_deploy.domain.lock import FILE_NAME, LockError, Release, parse
from lemonade_deploy.exits import Exit

DEB = "packages/ab_1_all.deb"
ARCHIVE = tar_gz(bundle_members())
HEAD = "schema: lemonade-deploy/lock/1\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry(name: str, data: bytes) -> dict[str, object]:
    return {"family": "gfx1151", "assets": [{"name": name, "size": len(data), "sha256": digest(data)}]}


def exported(lock: object, *members: tuple[tarfile.TarInfo | str, bytes]) -> None:
    """A file as `depot export` writes it, with what is wanted in it: x.tar."""
    text = lock if isinstance(lock, str) else yaml.safe_dump(lock)
    with tarfile.open("x.tar", "w") as tar:
        for info, data in ((FILE_NAME, text.encode()), *members):
            made = tarfile.TarInfo(info) if isinstance(info, str) else info
            made.size = len(data)
            tar.addfile(made, io.BytesIO(data))


def import_fails(capsys: pytest.CaptureFixture[str]) -> str:
    assert dispatch(["depot", "import", "x.tar", "--depot", "d"]) == Exit.FAILED
    return capsys.readouterr().err


@pytest.mark.parametrize("tag", ["packages", "mainline", "incoming", "token", ".lemonade-depot", "vllmX"])
def test_a_release_named_like_another_folder_of_a_depot_is_refused(
    here: Path, tag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "ab_1_all.deb").write_bytes(b"!<arch>\nGOOD")
    assert dispatch(["depot", "add-deb", "ab_1_all.deb", "--depot", "d"]) == Exit.OK
    lock = {"schema": "lemonade-deploy/lock/1", "releases": {tag: entry("ab_1_all.deb", ARCHIVE)}}
    exported(lock, (f"{tag}/ab_1_all.deb", ARCHIVE))
    assert "is not a release tag" in import_fails(capsys)
    assert (here / "d" / DEB).read_bytes() == b"!<arch>\nGOOD"
    assert not (here / "d" / "token").exists()


@pytest.mark.parametrize("name", ["chunks.json", "00000.zst", "a.partial", "a.tar.gz.progress"])
def test_an_asset_named_like_a_depots_own_file_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = {"schema": "lemonade-deploy/lock/1", "releases": {TAG: entry(name, ARCHIVE)}}
    with pytest.raises(LockError, match="a name that depots use"):
        parse(lock)
    exported(lock, (f"{TAG}/{name}", ARCHIVE))
    assert name in import_fails(capsys)
    package = {"packages": {f"{DEB}.partial": {"size": 1, "sha256": digest(b"x")}}}
    with pytest.raises(LockError, match=r"partial"):
        lockfile.packages_of(package, "l")


def test_an_import_writes_no_more_than_the_lock_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = {"schema": "lemonade-deploy/lock/1", "releases": {}}
    exported({**lock, "packages": {DEB: {"size": 7, "sha256": digest(b"x")}}}, (DEB, bytes(1 << 20)))
    assert "has 1048576 bytes in it, its lock says 7" in import_fails(capsys)
    assert not list((here / "d").rglob("*.partial"))
    link = tarfile.TarInfo(DEB)
    link.type, link.linkname = tarfile.SYMTYPE, FILE_NAME
    exported({**lock, "packages": {DEB: {"size": 1, "sha256": digest(b"x")}}}, (link, b""))
    assert DEB in import_fails(capsys)


TWICE = f"""{HEAD}releases:
  {TAG}: {{family: gfx1151, assets: [{{name: a, size: 1, sha256: {"1" * 64}}}]}}
  {TAG}: {{family: gfx1151, assets: [{{name: a, size: 1, sha256: {"2" * 64}}}]}}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TWICE, f"{TAG} stands there twice"),
        (f"{HEAD}releases: {{}}\nreleases: {{}}\n", "releases stands there twice"),
        ("2026-13-45: 1\n", "is no YAML"),
        ("[" * 5000, "is no YAML"),
        ("? {a: b}\n: c\n", "line 1: found unhashable key"),
    ],
)
def test_odd_yaml_is_an_error_with_a_name(
    here: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "l.lock").write_text(text)
    assert dispatch(["depot", "fetch", "--lock", "l.lock", "--depot", "d"]) == Exit.USAGE
    assert said in capsys.readouterr().err
    exported(text)
    assert said in import_fails(capsys)


def test_a_lock_that_could_not_be_read_is_not_written(here: Path) -> None:
    lockfile.write(here / "l.lock", {})
    before = (here / "l.lock").read_bytes()
    with pytest.raises(LockError, match="is empty"):
        lockfile.write(here / "l.lock", {TAG: Release(TAG, "gfx1151", ())})
    assert (here / "l.lock").read_bytes() == before


@pytest.mark.parametrize(
    "url",
    [
        *("notaurl", "github.com/x", "http://[", "http://127.0.0.1:abc/a"),
        *("http://h h/a", "http://h/ä", "ftp://h/a", "file:///etc/passwd", f"http://{'a' * 70}.example/a"),
    ],
)
def test_what_is_no_address_is_told_at_once(url: str) -> None:
    download = Download(url, policy=POLICY)
    with pytest.raises(FetchError) as told:
        download.exists()
    assert url in told.value.found
    assert download.retries == 0


def test_an_asset_without_an_address_asks_for_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = {"schema": "lemonade-deploy/lock/1", "releases": {TAG: entry("a", b"x")}}
    (here / FILE_NAME).write_text(yaml.safe_dump(lock))
    assert dispatch(["depot", "fetch", "--depot", "d"]) == Exit.FAILED
    assert "--base-url" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 100_000, '{"chunks": [], "size": 1e999}', "[]", "5"])
def test_an_odd_index_is_none(text: str) -> None:
    with pytest.raises(depot_index.BadIndex):
        depot_index.parse(text, Release(TAG, "gfx1151", ()))


def test_an_empty_token_is_made_anew_and_an_open_one_closed(here: Path) -> None:
    path = here / "d" / "token"
    path.parent.mkdir()
    path.touch()
    token = serve.token_of(here / "d")
    assert len(token) > 30
    path.chmod(0o644)
    said: list[str] = []
    assert serve.token_of(here / "d", said.append) == token
    assert path.stat().st_mode & 0o777 == 0o600 and str(path) in said[0]
    path.write_bytes("schlüssel\n".encode())
    with pytest.raises(FetchError, match="holds no token"):
        serve.token_of(here / "d")
    with pytest.raises(ValueError, match="open to all"):
        serve.server(here, ("127.0.0.1", 0), "")


def test_a_disk_that_is_full_leaves_no_empty_token(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            serve.token_of(here / "d")
    assert os.listdir(here / "d") == []


@pytest.fixture
def port(here: Path) -> Iterator[int]:
    """A served depot, `d`."""
    for name in ("packages/ab_1_all.deb", "packages/x y.deb", "incoming/x", f"{TAG}/a", "token"):
        (here / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "d" / name).write_bytes(b"0123456789")
    (here / "d" / "packages" / "link").symlink_to("/etc/passwd")
    (here / "d" / store.MARK).touch()
    running = serve.server(here / "d", ("127.0.0.1", 0), "t0ken")
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
    yield running.server_address[1]
    running.shutdown()
    running.server_close()


def ask(port: int, path: str, *heads: str) -> tuple[int, bytes]:
    """(status, body) of a request that no library would send."""
    text = "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", "Connection: close", *heads, "", ""])
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(text.encode("latin-1"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_odd_requests_get_an_answer(port: int) -> None:
    own = "Authorization: Bearer t0ken"
    assert ask(port, f"/{TAG}/a", own)[0] == 200
    assert ask(port, f"/{TAG}/a", "Authorization: Bearer ")[0] == 401
    assert ask(port, "http://[")[0] == 400
    assert ask(port, f"/packages/{'a' * 300}")[0] == 404
    assert ask(port, f"/packages/{'a' * 5000}")[0] == 404
    for path in ("/incoming/x", f"/{store.MARK}", f"/.x/{TAG}", "/token"):
        assert ask(port, path, own)[0] == 404, path
    assert ask(port, f"/{DEB}", f"Range: bytes={'9' * 5000}-") == (200, b"0123456789")
    assert ask(port, f"/{DEB}", f"Range: bytes={'9' * 19}-")[0] == 416
    assert ask(port, f"/{DEB}", "Range: bytes=2-3") == (206, b"23")


def test_a_page_lists_what_is_answered(port: int) -> None:
    page = ask(port, "/packages/")[1].decode()
    assert "ab_1_all.deb" in page
    assert "link" not in page and "x y" not in page
