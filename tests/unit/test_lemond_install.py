# SPDX-License-Identifier: Apache-2.0
"""vLLM by lemond: its answers are not taken at their word, and what it does is told as it goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy import validate
from lemonade_deploy.domain import bundle_rollback, lemond_install, lemond_install_job, paths, vllm_home
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.lemond_install import More, Wanted
from lemonade_deploy.domain.lock import Asset, Release
from lemonade_deploy.domain.module import Refused
from lemonade_deploy.validate import Variable

TAG = "vllm2-rocm7-gfx1151"
RELEASE = Release(TAG, "gfx1151", (Asset("a.tar.gz", 1000, "0" * 64),))
Reply = Callable[[BaseHTTPRequestHandler], None]


def as_json(status: int, body: Any) -> Reply:
    """An answer that is no stream."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        data = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return reply


def stream(*events: tuple[str, Any], then: Callable[[], None] = lambda: None, pause: float = 0.0) -> Reply:
    """Server-sent events, as lemond sends them; *then* happens before the last one."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        for number, (name, data) in enumerate(events, 1):
            time.sleep(pause)
            if number == len(events):
                then()
            handler.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())

    return reply


def progress(number: int, done: int) -> tuple[str, Any]:
    """As seen on Debian's 2026.39."""
    names = {"file": f"x-x64.part0{number}-of-02.tar.gz", "file_index": number, "total_files": 2}
    return "progress", {**names, "bytes_downloaded": done, "bytes_total": 8_000_000, "percent": 0}


COMPLETE = ("complete", {"bytes_downloaded": 0, "bytes_total": 0, "file_index": 2, "total_files": 2})


class Lemond(ThreadingHTTPServer):
    """Answers POST /v1/install with the next reply; notes the bodies."""

    daemon_threads = True

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.asked: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, body, self.headers.get("Authorization")))
                outer.replies.pop(0)(self)

            def log_message(self, *_args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def lemond() -> Iterator[Lemond]:
    server = Lemond()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def host(tmp_path: Path, lemond: Lemond, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host where lemond is set up to install vLLM itself."""
    made = Host(str(tmp_path))
    settings = {"host": "127.0.0.1", "port": lemond.server_address[1], "vllm": {"rocm_bin": TAG}}
    made.write(paths.LEMOND_DEFAULTS, json.dumps(settings))
    made.write(paths.LEMOND_SECRETS, 'LEMONADE_API_KEY="k3y"\n')
    monkeypatch.setattr(lemond_install_job, "busy", lambda _host: False)
    monkeypatch.setattr(lemond_install_job, "_POLL", 0.01)
    monkeypatch.setattr(lemond_install.bundle_layout, "missing", lambda _root, _family: [])
    # A job in this process is alive as long as /proc of the host's root says so.
    (tmp_path / "proc").symlink_to("/proc")
    return made


def there(host: Host, tag: str = TAG) -> Callable[[], None]:
    return lambda: host.write(f"{vllm_home.LEMOND_FOLDERS[0]}/{vllm_home.VERSION}", tag)


def install(host: Host, timeout: float = 20, seconds: float = 20) -> None:
    lemond_install.install(host, Wanted(RELEASE, timeout), seconds)


def test_installed_and_then_nothing_to_do(host: Host, lemond: Lemond) -> None:
    wanted = Wanted(RELEASE, 20)
    lemond.replies.append(stream(progress(1, 10), progress(2, 8_000_000), COMPLETE, then=there(host)))
    (change,) = lemond_install.plan(host, wanted, 20)
    assert (change.object, change.action) == ("bundle", "install")
    install(host)
    assert lemond.asked == [
        ("/v1/install", {"recipe": "vllm", "backend": "rocm", "stream": True}, "Bearer k3y"),
    ]
    assert lemond_install.plan(host, wanted, 20) == []
    assert vllm_home.active(host) == vllm_home.LEMOND_FOLDERS[0]
    assert not host.exists(lemond_install_job.STATE)


@pytest.mark.parametrize(
    ("reply", "said", "remedy"),
    [
        (
            as_json(200, {"action": "https://x/gfx1151.html", "recipe": "vllm"}),
            "installed nothing.*CWSR",
            "kernel",
        ),
        (as_json(200, {"status": "success", "action": "https://x"}), "installed nothing.*CWSR", "kernel"),
        (as_json(200, {"status": "success"}), "says that .* is installed, but .* holds nothing", "probe"),
        (stream(COMPLETE), "says that .* is installed, but .* holds nothing", "probe"),
        (
            as_json(400, {"error": "Cannot install: Automatic backend install is disabled."}),
            "could not install.*disabled",
            "no_fetch_executables",
        ),
        (as_json(405, "no"), "HTTP 405", "journalctl"),
        (stream(("error", {"error": "Cannot install vllm:rocm: offline mode"})), "offline mode", "kit"),
        (
            stream(progress(2, 5_000_000), ("error", {"error": "Failed to extract archive: /tmp/x"})),
            r"Failed to extract.*file 2 of 2, 5 of 8 MB",
            "300 s",
        ),
        (stream(progress(1, 0)), "without a last word", "journalctl"),
        (as_json(200, {"odd": 1}), "means nothing", "journalctl"),
    ],
)
def test_traps(host: Host, lemond: Lemond, reply: Reply, said: str, remedy: str) -> None:
    lemond.replies.append(reply)
    with pytest.raises(Refused, match=said) as refused:
        install(host)
    assert remedy in refused.value.remedy
    assert not host.exists(lemond_install_job.STATE)


def test_complete_with_another_version_is_no_success(host: Host, lemond: Lemond) -> None:
    """Seen: GitHub does not answer lemond's probe, so it keeps what it has and says complete."""
    there(host, "vllm1-rocm7-gfx1151")()
    lemond.replies.append(stream(COMPLETE))
    with pytest.raises(Refused, match=r"but .* holds vllm1-rocm7-gfx1151"):
        install(host)


def test_it_goes_on_between_two_calls_and_tells_how_far_it_is(host: Host, lemond: Lemond) -> None:
    steps = [progress(1, done * 1_000_000) for done in range(8)]
    lemond.replies.append(stream(*steps, COMPLETE, then=there(host), pause=0.15))
    with pytest.raises(More, match=r"file 1 of 2, \d of 8 MB"):
        install(host, seconds=0.6)
    install(host)
    assert len(lemond.asked) == 1


def test_a_time_limit_for_all_of_it(host: Host, lemond: Lemond) -> None:
    lemond.replies.append(stream(*[progress(1, 1)] * 50, pause=0.1))
    with pytest.raises(Refused, match="not done after 1 s"):
        install(host, timeout=1)


def test_what_lemond_installs_by_itself_is_waited_for(
    host: Host, lemond: Lemond, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two installations at once destroy each other; that of a load after a restart may come first."""
    busy = iter([True, True, True])

    def other(_host: Host) -> bool:
        works = next(busy, False)
        if not works:
            there(host)()
        return works

    monkeypatch.setattr(lemond_install_job, "busy", other)
    install(host)
    assert lemond.asked == []


def test_a_job_that_was_killed_is_begun_anew(host: Host, lemond: Lemond) -> None:
    lemond_install_job.write(host, lemond_install_job.State(TAG, pid=2**22 + 1))
    lemond.replies.append(stream(COMPLETE, then=there(host)))
    install(host)
    assert len(lemond.asked) == 1


def test_a_full_disk_is_told_with_numbers(
    host: Host, lemond: Lemond, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lemond_install.disk, "free_bytes", lambda _host, _path: 100 << 20)
    with pytest.raises(Refused, match=r"need 256 MiB at .*, 100 MiB are free"):
        install(host)
    assert lemond.asked == []


def test_a_lemond_with_the_kits_launcher_is_not_asked(host: Host, lemond: Lemond) -> None:
    host.write(paths.LEMOND_DEFAULTS, json.dumps({"vllm": {"rocm_bin": paths.LAUNCHER}}))
    with pytest.raises(Refused, match="not set up to install"):
        install(host)
    assert not vllm_home.by_lemond(host)


def test_no_way_back_to_a_bundle_that_lemond_does_not_keep(host: Host) -> None:
    with pytest.raises(Refused, match="keeps no previous one"):
        bundle_rollback.observe(host)


@pytest.mark.parametrize(
    ("other", "value", "refused"),
    [
        ("lemonade_server_daemon", "vllm", True),
        ("lemonade_server_offline", True, True),
        ("lemonade_server_offline", "no", False),
        ("lemonade_server_daemon", "lemond", False),
    ],
)
def test_contradictions_are_told_before_a_host_is_touched(other: str, value: Any, refused: bool) -> None:
    values = {
        "vllm_rocm_installer": Variable("vllm_rocm_installer", "lemond", file="hosts.yml", line=7),
        other: Variable(other, value, file="group_vars/all.yml", line=3),
    }
    (*said,) = validate.clashes({"halo-1": values, "halo-2": values})
    assert bool(said) is refused
    if refused:
        (text,) = said
        assert text.startswith("hosts.yml:7: vllm_rocm_installer lemond (hosts halo-1, halo-2) contradicts")
        assert "group_vars/all.yml:3" in text
