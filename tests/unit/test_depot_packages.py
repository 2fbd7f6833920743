# SPDX-License-Identifier: Apache-2.0
"""Packages in a depot: added, locked, carried over an air gap, served, and removed again."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nasty import Nasty, serving, spoiled

from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.depot import collect, lockfile, serve, store
from lemonade_deploy.depot import packages as domain
from lemonade_deploy.domain import mainline_source, signature
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.kernel_choice import Mainline
from lemonade_deploy.domain.lock import FILE_NAME, LockError, parse
from lemonade_deploy.domain.mainline import Version
from lemonade_deploy.exits import Exit

DEB = "lemonade-server_11.9.0-1_amd64.deb"
DATA = b"!<arch>\n" + b"a package" * 500
OTHER = b"!<arch>\nother"
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def server() -> Iterator[Nasty]:
    with serving() as running:
        running.files[f"/{DEB}"] = DATA
        yield running


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def depot(here: Path) -> Path:
    return here / "cache" / "lemonade-deploy" / "depot"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    running = serve.server(folder, ("127.0.0.1", 0), "t0ken")
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}"
    finally:
        running.shutdown()
        running.server_close()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return bytes(answer.read())


def test_a_file_is_locked_on_first_use_and_that_is_said(
    here: Path, depot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / DEB).write_bytes(DATA)
    assert dispatch(["depot", "add-deb", DEB]) == Exit.OK
    said = capsys.readouterr().err
    assert "TRUST ON FIRST USE" in said and DIGEST in said
    assert f"lemonade_server_deb: DEPOT/packages/{DEB}" in said
    locked = lockfile.read_packages(here / FILE_NAME)[f"packages/{DEB}"]
    assert (locked.size, locked.sha256, locked.url) == (len(DATA), DIGEST, "")
    assert (depot / "packages" / DEB).read_bytes() == DATA
    assert dispatch(["depot", "add-deb", DEB]) == Exit.OK
    assert "TRUST" not in capsys.readouterr().err


def test_other_bytes_than_said_or_locked_show_both(
    here: Path, depot: Path, server: Nasty, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{server.url}/{DEB}"
    assert dispatch(["depot", "add-deb", url, "--sha256", "0" * 64]) == Exit.FAILED
    said = capsys.readouterr().err
    assert "0" * 64 in said and DIGEST in said
    assert not (here / FILE_NAME).exists()
    assert dispatch(["depot", "add-deb", url, "--sha256", DIGEST.upper()]) == Exit.OK
    assert "TRUST" not in capsys.readouterr().err
    server.files[f"/{DEB}"] = OTHER
    assert dispatch(["depot", "add-deb", url]) == Exit.FAILED
    said = capsys.readouterr().err
    assert DIGEST in said and hashlib.sha256(OTHER).hexdigest() in said
    assert (depot / "packages" / DEB).read_bytes() == DATA


@pytest.mark.parametrize("source", ["x.deb", "lemonade.tar.gz", "https://example.org/", "a_1_arm64.deb"])
def test_what_is_no_package_is_refused(here: Path, source: str) -> None:
    assert dispatch(["depot", "add-deb", source]) == Exit.USAGE
    assert dispatch(["depot", "add-deb", DEB, "--sha256", "abc"]) == Exit.USAGE


def test_fetch_brings_a_locked_package_and_refuses_other_bytes(
    here: Path, depot: Path, server: Nasty, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["depot", "add-deb", f"{server.url}/{DEB}", "--sha256", DIGEST])
    place = depot / "packages" / DEB
    place.unlink()
    server.moves[f"/{DEB}"] = [spoiled]  # once is an accident
    assert dispatch(["depot", "fetch"]) == Exit.OK
    assert place.read_bytes() == DATA
    place.unlink()
    server.moves[f"/{DEB}"] = [spoiled] * 9
    assert dispatch(["depot", "fetch"]) == Exit.FAILED
    assert DIGEST in capsys.readouterr().err
    assert not place.exists()


def test_it_crosses_the_gap_and_damage_is_noticed(
    here: Path, server: Nasty, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["depot", "add-deb", f"{server.url}/{DEB}", "--sha256", DIGEST])
    assert dispatch(["depot", "export", "x.tar", "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["packages"] == [f"packages/{DEB}"]
    there = ["--lock", "b/l.lock", "--depot", "b/depot"]
    (here / "b").mkdir()
    assert dispatch(["depot", "import", "x.tar", *there]) == Exit.OK
    assert (here / "b" / "depot" / "packages" / DEB).read_bytes() == DATA
    assert lockfile.read_packages(here / "b" / "l.lock") == lockfile.read_packages(here / FILE_NAME)
    archive = bytearray((here / "x.tar").read_bytes())
    archive[archive.find(DATA) + 5] ^= 1
    (here / "x.tar").write_bytes(archive)
    assert dispatch(["depot", "import", "x.tar", "--depot", "c"]) == Exit.FAILED
    assert f"packages/{DEB}: expected sha256 {DIGEST}" in capsys.readouterr().err
    assert not list((here / "c").rglob("*.deb"))


def test_a_depot_that_rotted_is_not_exported(
    here: Path, depot: Path, server: Nasty, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["depot", "add-deb", f"{server.url}/{DEB}", "--sha256", DIGEST])
    (depot / "packages" / DEB).write_bytes(b"x" * len(DATA))
    assert dispatch(["depot", "export", "x.tar"]) == Exit.FAILED
    assert DIGEST in capsys.readouterr().err
    assert not (here / "x.tar").exists()


def test_a_page_is_no_package(
    here: Path, depot: Path, server: Nasty, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proxy that wants a password answers 200 with its own page."""
    server.files[f"/{DEB}"] = b"<!DOCTYPE html><title>Sign in</title>"
    assert dispatch(["depot", "add-deb", f"{server.url}/{DEB}"]) == Exit.FAILED
    said = capsys.readouterr().err
    assert f"{server.url}/{DEB} is no Debian package: it begins with b'<!DOCTYP'" in said
    assert "a page to sign in" in said
    assert not (here / FILE_NAME).exists()
    assert not [path for path in depot.rglob("*") if path.is_file() and DEB in path.name]


def test_an_import_that_contradicts_the_lock_touches_nothing(here: Path, depot: Path, server: Nasty) -> None:
    url = f"{server.url}/{DEB}"
    dispatch(["depot", "add-deb", url])
    dispatch(["depot", "export", "x.tar"])
    (here / FILE_NAME).unlink()
    server.files[f"/{DEB}"] = OTHER
    dispatch(["depot", "add-deb", url])
    assert dispatch(["depot", "import", "x.tar"]) == Exit.FAILED
    assert (depot / "packages" / DEB).read_bytes() == OTHER


def test_packages_are_served_without_a_token_and_releases_are_not(depot: Path) -> None:
    build = depot / "mainline" / "v6.18.20" / "amd64"
    build.mkdir(parents=True)
    (build / "CHECKSUMS").write_bytes(b"sums")
    (build / "x.deb.partial").write_bytes(b"half")
    (build / "link").symlink_to("/etc/passwd")
    (build.parent / "index.html").write_bytes(b"Build for amd64 succeeded")
    (depot / "tag").mkdir()
    (depot / "tag" / "file").touch()
    with served(depot) as url:
        assert get(f"{url}/mainline/v6.18.20/amd64/CHECKSUMS") == b"sums"
        assert get(f"{url}/mainline/v6.18.20/") == b"Build for amd64 succeeded"
        assert b'<a href="v6.18.20/">' in get(f"{url}/mainline/")
        assert b"partial" not in get(f"{url}/mainline/v6.18.20/amd64/")
        for path in ("amd64/x.deb.partial", "amd64/link", "amd64/../../../token", "../../tag/file", "none"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(f"{url}/mainline/v6.18.20/{path}")
        for path in ("tag/file", "token", "tag/", "", "incoming/x"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                get(f"{url}/{path}")


def test_gc_keeps_what_is_locked(here: Path, depot: Path, server: Nasty) -> None:
    dispatch(["depot", "add-deb", f"{server.url}/{DEB}"])
    stray = depot / "mainline" / "v6.18.4" / "amd64" / "old.deb"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"12345")
    half = depot / "packages" / f"{DEB}.partial"
    half.touch()
    locked = lockfile.read_packages(here / FILE_NAME)
    assert collect.collect(depot, [], locked) == [("mainline/v6.18.4/amd64/old.deb", 5)]
    assert not (depot / "mainline").exists()
    assert (depot / "packages" / DEB).exists() and half.exists()


def test_locking_a_release_leaves_packages_alone(here: Path, server: Nasty) -> None:
    dispatch(["depot", "add-deb", f"{server.url}/{DEB}"])
    before = lockfile.read_packages(here / FILE_NAME)
    lockfile.write(here / FILE_NAME, {})
    assert lockfile.read_packages(here / FILE_NAME) == before != {}


@pytest.mark.parametrize(
    ("path", "entry", "said"),
    [
        ("../x", {"size": 1, "sha256": "0" * 64}, "expected packages/FILE"),
        ("packages/../x", {"size": 1, "sha256": "0" * 64}, "expected packages/FILE"),
        ("packages/x", {"size": 0, "sha256": "0" * 64}, "size: expected a number above 0"),
        ("packages/x", {"size": True, "sha256": "0" * 64}, "size: expected"),
        ("packages/x", {"size": 1, "sha256": "0"}, "sha256: expected 64"),
        ("packages/x", {"size": 1, "sha256": "0" * 64, "more": 1}, "more: is not a key"),
        ("packages/x", 7, "expected a mapping"),
    ],
)
def test_a_lock_that_is_wrong_names_the_key(path: str, entry: object, said: str) -> None:
    with pytest.raises(LockError, match=said):
        domain.parse({path: entry}, "l.lock")


def test_hosts_read_a_lock_with_packages() -> None:
    assert parse({"schema": "lemonade-deploy/lock/1", "releases": {}, "packages": {"packages/x": {}}}) == {}


IMAGE = "linux-image-unsigned-6.18.20-061820-generic_6.18.20-061820.202603251312_amd64.deb"
MODULES = IMAGE.replace("image-unsigned", "modules")


def deb_of(name: str) -> bytes:
    return b"!<arch>\n" + name.encode()


@pytest.fixture
def mirror(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mainline mirror in a folder; signatures are judged elsewhere (test of the kernel layer)."""
    build = here / "mirror" / "v6.18.20" / "amd64"
    build.mkdir(parents=True)
    (build.parent / "index.html").write_text("Build for amd64 succeeded")
    sums = []
    for name in (IMAGE, MODULES):
        (build / name).write_bytes(deb_of(name))
        sums.append(f"{hashlib.sha256(deb_of(name)).hexdigest()}  {name}")
    (build / "CHECKSUMS").write_text("\n".join(sums))
    (build / "CHECKSUMS.gpg").write_text("signature")
    (here / "key.asc").write_text("key")
    monkeypatch.setattr(signature, "why_not", lambda *_: signature.GOOD)
    return here / "mirror"


def test_a_kernel_is_taken_whole_and_a_host_finds_it(here: Path, depot: Path, mirror: Path) -> None:
    words = ["depot", "add-kernel", "6.18.20", "--url", str(mirror), "--key", str(here / "key.asc")]
    assert dispatch(words) == Exit.OK
    assert dispatch(words) == Exit.OK
    locked = sorted(lockfile.read_packages(here / FILE_NAME))
    base = "mainline/v6.18.20"
    assert locked == sorted(
        ["mainline/key.asc", f"{base}/index.html"]
        + [f"{base}/amd64/{name}" for name in ("CHECKSUMS", "CHECKSUMS.gpg", IMAGE, MODULES)]
    )
    assert not (depot / store.INCOMING).exists()
    version = Version("v6.18.20", (6, 18, 20))
    with served(depot) as url:
        settings = Mainline(f"{url}/mainline", "F" * 40, f"{url}/mainline/key.asc")
        reader = mainline_source.Reader(Host(), settings)
        assert reader.tree.versions() == [version]
        debs = reader.build(version, headers=False)
        assert [get(deb.url) for deb in debs] == [deb_of(IMAGE), deb_of(MODULES)]


def test_a_kernel_with_a_damaged_package_or_signature_is_not_taken(
    here: Path, depot: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["depot", "add-kernel", "6.18.20", "--url", str(mirror), "--key", str(here / "key.asc")]
    (mirror / "v6.18.20" / "amd64" / MODULES).write_bytes(b"x")
    assert dispatch(words) == Exit.FAILED
    assert hashlib.sha256(deb_of(MODULES)).hexdigest() in capsys.readouterr().err
    monkeypatch.setattr(signature, "why_not", lambda *_: "made by another key")
    assert dispatch(words) == Exit.FAILED
    assert "made by another key" in capsys.readouterr().err
    assert not (here / FILE_NAME).exists()
    assert not (depot / "mainline").exists()
    assert dispatch(["depot", "add-kernel", "latest"]) == Exit.USAGE
