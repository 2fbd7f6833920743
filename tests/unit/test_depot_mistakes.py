# SPDX-License-Identifier: Apache-2.0
"""A user's mistakes with a depot: exit 64, what was found and what to do, and no number of the system's."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest
from mainline_site import Signer, Site
from nasty import TAG

from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.domain import fetch
from lemonade_deploy.domain.lock import FILE_NAME
from lemonade_deploy.exits import Exit

LOCK = f"schema: lemonade-deploy/lock/1\nreleases:\n  {TAG}: {{family: gfx1151}}\n"
EMPTY = "schema: lemonade-deploy/lock/1\nreleases: {}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("x")
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said on wrong input."""
    assert dispatch(["depot", *words]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "Errno" not in said and "Traceback" not in said
    return said


def pem(name: str) -> None:
    """A certificate and its key: NAME.pem, NAME.key."""
    made = ("-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=depot", "-days", "2")
    subprocess.run(
        ["openssl", "req", *made, "-keyout", f"{name}.key", "-out", f"{name}.pem"],
        check=True,
        capture_output=True,
    )


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = told(capsys, "serve", "--bind", "127.0.0.1", "--port", port)
    assert f"port {port} at 127.0.0.1 is in use already" in said
    assert f"ss -ltnp sport = :{port}" in said and "--port" in said


@pytest.mark.parametrize("bind", ["192.0.2.77", "no.such.name.invalid", "::1"])
def test_an_address_that_this_machine_has_not(bind: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, "serve", "--bind", bind, "--port", "13999")
    assert said.startswith(f"lemonade-deploy: --bind {bind}: ") and "ip -4 address" in said


def test_certificates_and_keys_that_cannot_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    pem("a")
    pem("b")

    def asked(certificate: str, key: str) -> str:
        return told(capsys, "serve", "--tls-cert", certificate, "--tls-key", key)

    assert "there is no file none.pem (--tls-cert)" in asked("none.pem", "a.key")
    assert "there is no file none.key (--tls-key)" in asked("a.pem", "none.key")
    assert "file (--tls-cert) holds no certificate" in asked("file", "a.key")
    assert "a.pem (--tls-key) holds no private key" in asked("a.pem", "a.pem")
    assert "b.key (--tls-key) is not the key of the certificate a.pem" in asked("a.pem", "b.key")
    lock = ("-aes256", "-passout", "pass:secret", "-in", "a.key", "-out", "locked.key")
    subprocess.run(["openssl", "pkey", *lock], check=True, capture_output=True)
    assert "locked.key (--tls-key) is protected by a passphrase" in asked("a.pem", "locked.key")


def test_what_is_no_export_is_not_imported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no file none.tar" in told(capsys, "import", "none.tar")
    assert f"{here} is a folder" in told(capsys, "import", str(here))
    said = told(capsys, "import", "file")
    assert "file is no tar file, so no export of a depot" in said and "depot export FILE" in said
    with tarfile.open("other.tar", "w") as tar:
        tar.add("file")
    assert f"other.tar is no export of a depot: it does not begin with {FILE_NAME}" in told(
        capsys, "import", "other.tar"
    )


def test_an_export_that_was_cut_off_is_damage(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / FILE_NAME).write_text(
        f"{EMPTY}packages: {{packages/ab_1_all.deb: {{size: 1, sha256: {'a' * 64}}}}}\n"
    )
    with tarfile.open("x.tar", "w") as tar:
        tar.add(FILE_NAME)
    (here / FILE_NAME).unlink()
    assert dispatch(["depot", "import", "x.tar"]) == Exit.FAILED
    said = capsys.readouterr().err
    assert "x.tar lacks packages/ab_1_all.deb." in said and "Copy it anew" in said


@pytest.mark.parametrize(
    "words",
    [
        ["serve"],
        ["fetch"],
        ["gc"],
        ["export", "x.tar"],
        ["import", "file"],
        ["add-deb", "a_1_all.deb"],
        ["add-kernel", "6.18.20"],
    ],
)
def test_a_depot_that_is_a_file(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "--depot file is a file; a depot is a folder." in told(capsys, *words, "--depot", "file")
    said = told(capsys, *words, "--depot", "file/below")
    assert "--depot file/below lies below file, which is a file" in said
    os.symlink("nowhere", "link")
    assert "a link that leads nowhere" in told(capsys, *words, "--depot", "link")


@pytest.mark.parametrize("words", [["fetch"], ["gc"], ["export", "x.tar"]])
def test_a_lock_file_that_is_not_there(
    here: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, *words)
    assert f"the lock file {FILE_NAME} does not exist." in said
    assert "`lemonade-deploy depot lock default` makes it" in said and "locks nothing" not in said
    (here / "inv").mkdir()
    assert f"the lock file inv/{FILE_NAME} does not exist." in told(capsys, *words, "-i", "inv")
    (here / FILE_NAME).write_text(EMPTY)
    assert f"the lock file {FILE_NAME} names neither a release nor a package." in told(capsys, *words)
    assert "inv is a folder" in told(capsys, *words, "--lock", "inv")


def test_a_lock_file_that_is_wrong(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / FILE_NAME).write_text(LOCK)
    said = told(capsys, "fetch")
    assert f"releases.{TAG}.assets: is missing" in said and "Correct the lock file" in said
    assert dispatch(["depot", "fetch", "--json"]) == Exit.USAGE
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 64 and "is missing" in document["error"]["message"]


def test_what_add_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no name of a package" in told(capsys, "add-deb", "lemonade.tar.gz")
    assert "there is no file none_1_all.deb" in told(capsys, "add-deb", "none_1_all.deb")
    assert "latest is no stable version" in told(capsys, "add-kernel", "latest")
    assert "there is no folder /no/mirror (--url)" in told(
        capsys, "add-kernel", "6.18.20", "--url", "/no/mirror"
    )
    assert "there is no file /no/key.asc (--key)" in told(
        capsys, "add-kernel", "6.18.20", "--key", "/no/key.asc"
    )
    said = told(capsys, "add-kernel", "6.18.20", "--fingerprint", "banana")
    assert "--fingerprint banana: 40 hexadecimal digits are wanted" in said


@pytest.mark.parametrize("url", ["notaurl", "ftp://example.org/x", "http://[/x", "file://[/x"])
def test_what_is_no_address(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert url in told(capsys, "lock", TAG, "--base-url", url)
    if "://" in url:
        assert url in told(capsys, "add-deb", f"{url}/ab_1_all.deb")
        assert url in told(capsys, "add-kernel", "6.18.20", "--url", url)


@pytest.mark.parametrize("words", [["lock", TAG], ["add-deb"]])
def test_who_starts_anew_does_not_promise_to_go_on(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch.time, "sleep", lambda _seconds: None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    more = ["--base-url", url] if words[0] == "lock" else [f"{url}/ab_1_all.deb"]
    assert dispatch(["depot", *words, *more]) == Exit.FAILED
    said = capsys.readouterr().err
    assert "Connection refused" in said and "run the same command again" in said
    assert "goes on" not in said


def test_who_keeps_what_came_says_that_it_goes_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch.time, "sleep", lambda _seconds: None)
    asset = f"{{name: a.tar.gz, size: 9, sha256: {'a' * 64}}}"
    (here / FILE_NAME).write_text(LOCK.replace("gfx1151}\n", f"gfx1151, assets: [{asset}]}}\n"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert dispatch(["depot", "fetch", "--base-url", url]) == Exit.FAILED
    assert "run the same command again; it goes on where it was." in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("gpgv") is None, reason="needs gpgv")
def test_add_kernel_names_its_own_options(
    here: Path, signer: Signer, capsys: pytest.CaptureFixture[str]
) -> None:
    Site(signer).version("6.18.20").lay(here / "mirror")
    (here / "key.asc").write_bytes(signer.key)
    words = ["depot", "add-kernel", "--url", str(here / "mirror"), "--key", str(here / "key.asc")]
    assert dispatch([*words, "6.18.20", "--fingerprint", "A" * 40]) == Exit.FAILED
    said = capsys.readouterr().err
    assert f"the key file holds {signer.fingerprint}, not {'A' * 40}" in said
    assert "Compare --fingerprint with what Ubuntu publishes" in said and "kernel_mainline" not in said
    assert dispatch([*words, "6.18.99", "--fingerprint", signer.fingerprint]) == Exit.FAILED
    assert "Name another VERSION" in capsys.readouterr().err
    (here / "mirror/v6.18.20/amd64/CHECKSUMS.gpg").unlink()
    assert dispatch([*words, "6.18.20", "--fingerprint", signer.fingerprint]) == Exit.FAILED
    said = capsys.readouterr().err
    assert "Take a whole mirror of kernel.ubuntu.com/mainline as --url." in said
    assert "kernel_mainline" not in said and "kernel_source" not in said
