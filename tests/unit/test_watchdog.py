# SPDX-License-Identifier: Apache-2.0
"""The watchdog's script, run for real beside a systemctl of ours: whom it restarts, whom it leaves alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lemonade_deploy.domain import watchdog
from lemonade_deploy.domain.host import Completed, Host

_SYSTEMCTL = """#!/bin/sh
[ "$1" = restart ] && echo "$2" >> restarted
[ "$1" = show ] && cat shown
exit 0
"""


class Box:
    """A folder with the script, a systemctl, and what that says of the unit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "systemctl").write_text(_SYSTEMCTL)
        (folder / "systemctl").chmod(0o755)
        # One look takes five seconds where nothing answers; the test has no such time.
        text = watchdog.files("u", "x")[watchdog.SCRIPT_FILE][0].replace("timeout=5", "timeout=0.2")
        (folder / "script").write_text(text)
        self.cpu = 1.0
        self.unit()

    def unit(self, active: str = "active", invocation: str = "a") -> None:
        shown = f"ActiveState={active}\nInvocationID={invocation}\nCPUUsageNSec={self.cpu * 1e9:.0f}\n"
        (self.folder / "shown").write_text(shown)

    def look(self, port: int, times: int = 1) -> list[str]:
        """Run it; the units restarted so far."""
        for _turn in range(times):
            path = f"{self.folder}:{os.environ['PATH']}"
            subprocess.run(
                [sys.executable, "-I", "script", "x.service", f"http://127.0.0.1:{port}/health"],
                cwd=self.folder,
                env={"PATH": path, "RUNTIME_DIRECTORY": str(self.folder)},
                check=True,
                timeout=20,
            )
        done = self.folder / "restarted"
        return done.read_text().split() if done.exists() else []


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


@contextmanager
def server(status: int = 200, port: int = 0) -> Iterator[int]:
    """Answers every request with *status*."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            return

    running = HTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield running.server_port
    finally:
        running.shutdown()
        running.server_close()


@contextmanager
def hanging(port: int) -> Iterator[None]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", port)):
        yield


def answered(box: Box) -> int:
    """A port that has answered once, and is closed again."""
    with server() as port:
        assert box.look(port) == []
    return port


def test_what_answers_is_left_alone(box: Box) -> None:
    with server() as port:
        assert box.look(port, times=5) == []


def test_what_has_not_answered_yet_is_loading(box: Box) -> None:
    with server() as port:
        pass
    assert box.look(port, times=5) == []


def test_three_refusals_in_turn_restart(box: Box) -> None:
    port = answered(box)
    assert box.look(port, times=2) == []
    assert box.look(port) == ["x.service"]
    # That start is another one, which has not answered yet.
    box.unit(invocation="b")
    assert box.look(port, times=4) == ["x.service"]


def test_an_answer_in_between_counts(box: Box) -> None:
    port = answered(box)
    box.look(port, times=2)
    with server(port=port):
        box.look(port)
    assert box.look(port, times=2) == []


def test_an_engine_that_says_it_is_dead(box: Box) -> None:
    port = answered(box)
    with server(503, port):
        assert box.look(port, times=3) == ["x.service"]


def test_what_speaks_no_http_is_restarted(box: Box) -> None:
    port = answered(box)
    with socket.create_server(("127.0.0.1", port)) as listener:

        def garble() -> None:
            for _turn in range(3):
                with listener.accept()[0] as caller:
                    caller.recv(65536)
                    caller.sendall(b"what?\n")

        threading.Thread(target=garble, daemon=True).start()
        assert box.look(port, times=3) == ["x.service"]


def test_silent_and_idle_is_hanging(box: Box) -> None:
    port = answered(box)
    with hanging(port):
        assert box.look(port, times=3) == ["x.service"]


def test_silent_but_at_work_is_busy(box: Box) -> None:
    """All of lemond's threads can be held by long requests while its engine works for them."""
    port = answered(box)
    with hanging(port):
        for _turn in range(5):
            box.cpu += 1
            box.unit()
            assert box.look(port) == []


def test_what_does_not_run_is_systemds_business(box: Box) -> None:
    port = answered(box)
    box.unit(active="activating")
    assert box.look(port, times=4) == []


def test_it_is_set_up_once_and_removed_once(tmp_path: Path) -> None:
    shown = "ActiveState=active\nUnitFileState=enabled\n"
    host = Host(str(tmp_path), lambda argv, _env, _stdin, _timeout: Completed(tuple(argv), 0, shown, ""))
    plan = lambda wanted, url="http://h/live": watchdog.plan(host, wanted, "lemond.service", url)  # noqa: E731
    assert plan(False) == []
    for wanted, url, action in (
        (True, "http://h/live", "set up"),
        (True, "http://h/health", "set up"),
        (False, "", "remove"),
    ):
        (change,) = plan(wanted, url)
        assert (change.object, change.action) == ("watchdog", action)
        for operation in change.operations:
            operation.apply(host)
        assert plan(wanted, url) == []
