# SPDX-License-Identifier: Apache-2.0
"""Paths that cannot even be looked at, what would be overwritten, a stop in the middle: no traceback."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
from nasty import Handler, Nasty, info

from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.depot import serve
from lemonade_deploy.exits import Exit

LOCK = (
    "schema: lemonade-deploy/lock/1\nreleases: {}\npackages:\n  packages/a_1_all.deb: {size: 1, sha256: %s}\n"
)
# Each line names the line before nine times: some 100 bytes a line, 9 ** 9 words in its last.
BOMB = "a: &a0 [x]\n" + "".join(f"b{n}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9))
LONG = "a" * 300  # more than a file's name may have


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "lemonade-deploy.lock").write_text(LOCK % ("a" * 64))
    (tmp_path / "hosts.yml").write_text("all: {hosts: {a: }}\n")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said on wrong input, in the one document."""
    assert dispatch([*words, "--json"]) == Exit.USAGE
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == Exit.USAGE
    return f"{found['error']['message']} {found['error']['remedy']}"


@pytest.mark.parametrize(
    "words",
    [
        ("depot", "fetch", "--depot", LONG),
        ("depot", "gc", "--depot", LONG),
        ("depot", "fetch", "-i", LONG),
        ("depot", "lock", "default", "--lock", LONG),
        ("depot", "export", LONG),
        ("depot", "import", LONG),
        ("doctor", "-i", LONG),
        ("site.yml", "--check", "-i", LONG),
        (LONG, "--check", "-i", "localhost,"),
        ("rollback", "--bundle", "-i", LONG),
        ("site.yml", "--check", "-i", "localhost,", "--vault-password-file", LONG),
    ],
)
def test_a_path_that_cannot_be_looked_at(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert LONG in refused(capsys, *words)  # newer Pythons say that it is not there


@pytest.mark.parametrize("verb", ["depot", "doctor"])
def test_a_folder_of_another_user(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def closed(path: Path, *_args: object, **_options: object) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    for look in ("exists", "is_dir", "is_file"):
        monkeypatch.setattr(Path, look, closed)
    words = ("depot", "gc", "--depot", "closed/d") if verb == "depot" else ("doctor", "-i", "closed/h.yml")
    assert "this user may not read or write" in refused(capsys, *words)


def test_a_user_without_a_home_names_the_depot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", none)
    assert "Name a folder with --depot." in refused(capsys, "depot", "fetch")
    assert dispatch(["depot", "gc", "--depot", "d"]) == Exit.OK


@pytest.mark.parametrize("target", ["pipe", "lemonade-deploy.lock", "hosts.yml"])
def test_an_export_replaces_no_device_and_nothing_it_is_made_from(
    target: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("pipe")
    before = (here / "lemonade-deploy.lock").read_bytes()
    assert target in refused(capsys, "depot", "export", target, "-i", "hosts.yml")
    assert (here / "lemonade-deploy.lock").read_bytes() == before


def test_a_lock_file_that_is_a_pipe_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    assert "a plain file is wanted" in refused(capsys, "depot", "fetch", "--lock", "pipe")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fetch", "--depot", ""), "--depot names nothing"),
        (("add-deb", "http://127.0.0.1:9/ab_1_all.deb", "--sha256", ""), "--sha256 '': 64 hexadecimal"),
        (("lock", ""), "RELEASE is empty"),
    ],
)
def test_an_option_that_names_nothing(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "depot", *words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LOCK.replace("1,", f"0x{'f' * 6000},") % ("a" * 64), "line 4: a number of more than 63 bits"),
        (f"schema: 0x{'f' * 6000}\nreleases: {{}}\n", "line 1: a number of more than 63 bits"),
        (f"{BOMB}schema: *a9\nreleases: {{}}\n", "schema: expected a text, found a list ([["),
    ],
)
def test_a_lock_file_that_blows_up_is_told_shortly(
    text: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "lemonade-deploy.lock").write_text(text)
    found = refused(capsys, "depot", "fetch")
    assert said in found and len(found) < 400


@pytest.mark.parametrize("lock", [True, False])
def test_an_export_with_heads_without_end_is_damage(
    lock: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, text = info("lemonade-deploy.lock"), (LOCK % ("a" * 64)).encode()
    first.size = len(text)
    heads = [first.tobuf(), text.ljust(512, b"\0")] if lock else []
    name = info("././@LongLink", b"L")
    name.size = 5
    heads += [name.tobuf(tarfile.GNU_FORMAT), b"abcd".ljust(512, b"\0")] * 2000
    (here / "x.tar").write_bytes(b"".join(heads))
    code = dispatch(["depot", "import", "x.tar", "--lock", "other.lock", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == found["exit_code"] == (Exit.FAILED if lock else Exit.USAGE)
    assert "recursion" in found["error"]["message"] if lock else "no tar file" in found["error"]["message"]
    assert found["error"]["remedy"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_in_the_middle_is_exit_1_with_one_document(
    number: signal.Signals, here: Path, server: Nasty
) -> None:
    asked = threading.Event()

    def slow(handler: Handler, _body: bytes, _start: int) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        asked.set()
        time.sleep(3)

    server.moves["/ab_1_all.deb"].append(slow)
    words = ("add-deb", f"{server.url}/ab_1_all.deb", "--depot", "d", "--json")
    with subprocess.Popen(
        [sys.executable, "-m", "lemonade_deploy", "depot", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=here,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert asked.wait(60)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1, stderr
    assert json.loads(stdout)["error"]["message"] == "Stopped."
    assert "Traceback" not in stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_stopped_has_done_its_work(number: signal.Signals, here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with subprocess.Popen(
        [sys.executable, "-m", "lemonade_deploy", "depot", "serve", "--depot", "d", "--port", port],
        stderr=subprocess.PIPE,
        text=True,
        cwd=here,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stderr
        line = next(line for line in process.stderr if "in another terminal" in line)
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == 0
    assert rest.splitlines()[-1] == "stopped", line  # a line that was being written may come twice


def test_a_connection_that_breaks_is_a_line_and_nobody_writes_into_the_terminal(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    running = serve.server(here, ("127.0.0.1", 0), "t0ken", said=lines.append)
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
    try:
        for data in (b"GET /\x1b]0;owned\x07 HTTP/1.1\r\n\r\n", b""):
            client = socket.create_connection(("127.0.0.1", running.server_port))
            client.sendall(data)
            if data:
                client.recv(4096)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            client.close()
        deadline = time.monotonic() + 60
        while sum("the connection broke" in line for line in lines) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        running.shutdown()
        running.server_close()
    assert lines.count("127.0.0.1 the connection broke (Connection reset by peer)") == 2
    assert not any("\x1b" in line or "\x07" in line for line in lines)
    assert capsys.readouterr().err == ""


def test_links_in_a_ring_are_not_found(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "packages").mkdir()
    (here / "packages" / "ring").symlink_to("ring")
    running = serve.server(here, ("127.0.0.1", 0), "t0ken")
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
    try:
        with socket.create_connection(("127.0.0.1", running.server_port), 5) as client:
            client.sendall(b"GET /packages/ring HTTP/1.1\r\n\r\n")
            assert client.recv(4096).split()[1] == b"404"
    finally:
        running.shutdown()
        running.server_close()
