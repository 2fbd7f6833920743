# SPDX-License-Identifier: Apache-2.0
"""The unit that makes a model warm again: what is planned, and what its script does, run for real."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.domain import paths, warm_up
from lemonade_deploy.domain.host import Completed, Host

LINK = f"/etc/systemd/system/lemond.service.wants/{warm_up.UNIT}"


def test_once_set_up_there_is_nothing_to_do(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    (change,) = warm_up.plan(host, "user.A", 1800)
    assert (change.layer, change.action) == ("models", "set up")
    for operation in change.operations[:3]:
        operation.apply(host)
    host.write(LINK, "")
    assert warm_up.plan(host, "user.A", 1800) == []
    assert len(warm_up.plan(host, "user.B", 1800)) == 1
    assert Path(host.path(warm_up.SCRIPT_FILE)).stat().st_mode & 0o111
    unit = host.read(warm_up.UNIT_FILE) or ""
    assert "PartOf=lemond.service" in unit and "WantedBy=lemond.service" in unit
    assert f"EnvironmentFile=-{paths.LEMOND_SECRETS}" in unit


def systemd(*states: dict[str, Any]) -> Host:
    """A host whose unit goes through *states*."""
    left = iter(states)

    def run(argv: Any, *_more: Any) -> Completed:
        told = "\n".join(f"{key}={value}" for key, value in next(left).items())
        return Completed(tuple(argv), 0, told, "")

    return Host("/", run)


def test_a_load_that_goes_on_is_waited_for() -> None:
    assert warm_up.await_end(systemd({"ActiveState": "inactive"}), 5) is None
    before, now = time.time(), time.monotonic()
    times = {
        "ExecMainStartTimestampMonotonic": int((now - 9) * 1e6),
        "ExecMainExitTimestampMonotonic": int((now - 2) * 1e6),
    }
    ended = warm_up.await_end(
        systemd({"ActiveState": "activating"}, {"ActiveState": "failed", "Result": "exit-code", **times}), 60
    )
    assert ended and ended.failed and abs(ended.seconds - 7) < 0.1
    assert before - 9.1 < ended.began < time.time() - 8.9


def test_a_load_that_outlasts_the_units_or_our_patience_is_no_failed_one() -> None:
    """lemond goes on with it: the unit's limit may be an older, shorter one, which this run has raised."""
    busy = {"ActiveState": "activating", "ExecMainStartTimestampMonotonic": int(time.monotonic() * 1e6) - 9}
    over = {"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": warm_up.GAVE_UP}
    for states, patience in (([busy] * 9, 0.01), ([busy, over], 5)):
        seen = warm_up.await_end(systemd(*states), patience)
        assert seen and seen.unfinished and not seen.failed


class Lemond(BaseHTTPRequestHandler):
    """Answers as lemond does; ``loads`` are the models that were asked for, with the key."""

    loaded: list[Any] = []  # noqa: RUF012  set anew by each test
    loads: list[tuple[str, str]] = []  # noqa: RUF012
    status = 200
    seconds = 0.0  # that a load takes

    def do_GET(self) -> None:
        self._say(200, {"status": "ok", "all_models_loaded": self.loaded})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.loads.append((body["model_name"], self.headers.get("Authorization", "")))
        time.sleep(self.seconds)
        self._say(self.status, {"error": {"message": "no room"}} if self.status != 200 else {})

    def _say(self, status: int, told: Any) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Lemond.loaded, Lemond.loads, Lemond.status, Lemond.seconds = [], [], 200, 0.0
    found = ThreadingHTTPServer(("127.0.0.1", 0), Lemond)
    threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def run(folder: Path, port: int, limit: int = 60) -> subprocess.CompletedProcess[str]:
    """The script, with its files below *folder*."""
    (folder / "defaults.json").write_text(json.dumps({"host": "0.0.0.0", "port": port}))
    (folder / "model").write_text("user.A\n")
    script = warm_up.script(limit).replace(paths.LEMOND_DEFAULTS, str(folder / "defaults.json"))
    script = script.replace(warm_up.MODEL_FILE, str(folder / "model")).replace("+ 60\n", "+ 1\n")
    return subprocess.run(
        [sys.executable, "-I", "-"],
        input=script,
        env={"LEMONADE_API_KEY": "the-key"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_script_loads_with_the_key(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    done = run(tmp_path, server.server_address[1])
    assert done.returncode == 0, done.stderr
    assert Lemond.loads == [("user.A", "Bearer the-key")]
    assert "the-key" not in done.stdout + done.stderr


def test_a_loaded_model_is_left_alone(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    Lemond.loaded = [{"model_name": "B"}]
    assert run(tmp_path, server.server_address[1]).returncode == 0
    assert Lemond.loads == []


def test_a_load_that_takes_longer_ends_with_a_code_of_its_own(
    tmp_path: Path, server: ThreadingHTTPServer
) -> None:
    Lemond.seconds = 1.5
    done = run(tmp_path, server.server_address[1], limit=1)
    assert done.returncode == warm_up.GAVE_UP and "was not loaded after 1 s" in done.stderr


def test_failures_are_told(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    Lemond.status = 500
    done = run(tmp_path, server.server_address[1])
    assert done.returncode == 1 and "user.A does not load" in done.stderr and "no room" in done.stderr
    server.shutdown()
    server.server_close()
    done = run(tmp_path, server.server_address[1])
    assert done.returncode == 1 and "does not answer" in done.stderr


def test_what_speaks_no_http_is_told(
    tmp_path: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lemond, "do_GET", lambda self: self.wfile.write(b"what?\n"))
    done = run(tmp_path, server.server_address[1])
    assert done.returncode == 1 and done.stderr.startswith("lemond does not answer at")
