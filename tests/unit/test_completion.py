# SPDX-License-Identifier: Apache-2.0
"""What counts as an answer, and whose process gave it. Against a real HTTP server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.domain import completion, engine, paths
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.lemond_api import Lemond, LemondUnreachable
from lemonade_deploy.domain.module import Refused

GOOD: dict[str, Any] = {
    "model": "user.Small",
    "choices": [{"finish_reason": "stop", "message": {"content": "Four.", "reasoning": None}}],
    "usage": {"prompt_tokens": 37, "completion_tokens": 12},
}


class Server(ThreadingHTTPServer):
    """Answers every request with ``reply`` and keeps the headers it was sent."""

    reply: tuple[int, Any] = (200, GOOD)
    seen: dict[str, str] = {}  # noqa: RUF012


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def do_POST(self) -> None:
        """Any route."""
        server = self.server
        assert isinstance(server, Server)
        server.seen = dict(self.headers)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, body = server.reply
        data = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST

    def log_message(self, *_args: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def ask(server: Server, key: str = "") -> completion.Inference:
    client = Lemond(f"http://127.0.0.1:{server.server_port}", key)
    return completion.ask(client, "user.Small", "What is 2+2?", 256, 10)


def changed(**parts: Any) -> dict[str, Any]:
    return {**GOOD, **parts}


def message(**parts: Any) -> dict[str, Any]:
    return changed(choices=[{"finish_reason": "stop", "message": parts}])


def test_a_rate_is_what_the_clock_says() -> None:
    told = completion.Inference("m", "Four.", "stop", 37, 12, 0.25).public()
    assert (told["seconds"], told["tokens_per_second"]) == (0.25, 48.0)


def test_a_good_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # the host's proxy must not see this
    told = ask(server, "the-key").public()
    assert (told["content"], told["finish_reason"], told["completion_tokens"]) == ("Four.", "stop", 12)
    assert server.seen["Authorization"] == "Bearer the-key"


def test_reasoning_without_content_is_an_answer(server: Server) -> None:
    server.reply = (200, message(content=None, reasoning="Two and two …"))
    assert ask(server).content == "Two and two …"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ((500, {"error": {"message": "boom", "type": "model_load_error"}}), "boom"),
        ((200, {"error": {"message": "inside 200"}}), "inside 200"),
        ((401, {"error": "Invalid or missing API key"}), "API key"),
        ((200, message(content="  ")), "neither content nor reasoning"),
        ((200, changed(choices=[])), "neither content nor reasoning"),
        ((200, changed(choices=[{"message": {"content": "x"}}])), "finish_reason"),
        ((200, changed(usage={"completion_tokens": 0})), "completion tokens"),
        ((200, changed(model="another")), "another"),
        ((200, None), "does not answer"),
        ((200, [1]), "does not answer"),
        ((200, changed(choices=[None])), "neither content nor reasoning"),
        ((200, changed(choices={"a": 1})), "neither content nor reasoning"),
        ((200, changed(choices=[{"message": "text"}])), "neither content nor reasoning"),
        ((200, changed(usage={"completion_tokens": "many"})), "completion tokens"),
        ((200, changed(usage=[1])), "completion tokens"),
        ((200, changed(error={"message": "beside it"})), "beside it"),
    ],
)
def test_what_is_no_answer(server: Server, reply: tuple[int, Any], why: str) -> None:
    server.reply = reply
    with pytest.raises(Refused, match=why):
        ask(server)


def test_an_empty_error_beside_a_good_answer_is_none(server: Server) -> None:
    server.reply = (200, changed(error=None))
    assert ask(server).content == "Four."


@pytest.mark.parametrize("data", [None, {"a": 1}, [None, 1], "x"])
def test_a_list_of_models_that_is_none_names_none(server: Server, data: Any) -> None:
    server.reply = (200, {"data": data, "all_models_loaded": data})
    client = Lemond(f"http://127.0.0.1:{server.server_port}")
    assert (client.model_names(), client.loaded("x")) == ([], None)
    with pytest.raises(Refused, match="serves nothing"):
        completion.served_name(client, "x")


def test_a_key_that_is_not_demanded_is_an_error(server: Server) -> None:
    endpoint = f"http://127.0.0.1:{server.server_port}"
    completion.check_key(endpoint, "")
    with pytest.raises(Refused, match="does not demand it"):
        completion.check_key(endpoint, "the-key")
    assert "Authorization" not in server.seen
    server.reply = (401, {"error": "Invalid or missing API key"})
    completion.check_key(endpoint, "the-key")


@pytest.mark.parametrize(
    ("given", "labels", "name"),
    [
        ("Small", ["chat", "custom"], "user.Small"),
        ("user.Small", ["custom"], "user.Small"),
        ("Big", ["chat"], "Big"),
    ],
)
def test_own_models_are_asked_by_their_full_name(
    server: Server, given: str, labels: list[str], name: str
) -> None:
    client = Lemond(f"http://127.0.0.1:{server.server_port}")
    server.reply = (200, {"id": given, "labels": labels})
    assert completion.full_name(client, given) == name


def test_a_model_that_lemond_does_not_know(server: Server) -> None:
    server.reply = (404, {"error": {"message": "not found"}})
    with pytest.raises(Refused, match="no model Small"):
        completion.full_name(Lemond(f"http://127.0.0.1:{server.server_port}"), "Small")
    with pytest.raises(Refused, match="no model to ask"):
        completion.full_name(Lemond("http://127.0.0.1:1"), "")


def test_nothing_listens() -> None:
    with pytest.raises(LemondUnreachable, match=r"127\.0\.0\.1:1"):
        Lemond("http://127.0.0.1:1").get("/live")
    assert not Lemond("http://127.0.0.1:1").alive()


def test_whose_log_may_say_why(server: Server) -> None:
    """vLLM as the daemon writes nothing into lemond's journal."""
    unit, client = "lemonade-vllm.service", Lemond(f"http://127.0.0.1:{server.server_port}")
    server.reply = (500, None)
    for asked in (client, Lemond("http://127.0.0.1:1")):
        with pytest.raises(Refused) as refusal:
            completion.ask(asked, "user.Small", "?", 9, 5, unit)
        assert f"journalctl -u {unit}" in refusal.value.remedy
    with pytest.raises(Refused, match="No answer of the daemon") as refusal, completion.answered(unit):
        completion.served_name(Lemond("http://127.0.0.1:1"), "x")
    assert f"systemctl status {unit}" in refusal.value.remedy


# --- whose process -----------------------------------------------------------------

TAG = f"{paths.BUNDLE_ROOT}/vllm1-gfx1151"


def systemctl(
    argv: Sequence[str], _env: Mapping[str, str], _stdin: str | None, _timeout: float | None
) -> Completed:
    return Completed(tuple(argv), 0, "ActiveState=active\nMainPID=10\n", "")


def host_with(tmp_path: Path, program: str, parent: int) -> Host:
    """A host whose process 30 runs *program* below *parent*."""
    host = Host(str(tmp_path), systemctl)
    for pid, above in ((30, parent), (20, 10), (10, 1)):
        host.write(f"/proc/{pid}/stat", f"{pid} (a (b) c) S {above} 0 0")
    host.write("/proc/30/cmdline", "python3\0-m\0vllm\0")
    (tmp_path / "proc/30/exe").symlink_to(program)
    (tmp_path / TAG.lstrip("/")).mkdir(parents=True)
    (tmp_path / paths.BUNDLE_CURRENT.lstrip("/")).symlink_to("vllm1-gfx1151")
    return host


def test_the_bundles_own_engine(tmp_path: Path) -> None:
    found = engine.read(host_with(tmp_path, f"{TAG}/bin/python3.12", 20), {"pid": 30})
    engine.check(found)
    assert found.argv == ("python3", "-m", "vllm")
    assert found.public()["bundle"] == TAG


@pytest.mark.parametrize(
    ("program", "parent", "why"),
    [
        ("/usr/bin/python3", 20, "not one of"),
        (f"{TAG}-older/bin/python3", 20, "not one of"),
        (f"{TAG}/bin/python3", 1, "no child of"),
    ],
)
def test_other_engines(tmp_path: Path, program: str, parent: int, why: str) -> None:
    with pytest.raises(Refused, match=why):
        engine.check(engine.read(host_with(tmp_path, program, parent), {"pid": 30}))


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    host = host_with(tmp_path, f"{TAG}/bin/python3", 20)
    with pytest.raises(Refused, match="is gone"):
        engine.check(engine.read(host, {"pid": 31}))
