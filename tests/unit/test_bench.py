# SPDX-License-Identifier: Apache-2.0
"""The burn test against a server that streams, stalls and breaks. Real HTTP on loopback."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.domain import bench, bench_request, bench_session, paths
from lemonade_deploy.domain.bench_request import RequestFailed, Sample, Target
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.lemond_api import Lemond
from lemonade_deploy.domain.refusal import Refused

KEY = "canary-9d2f"
TRACE = "2026-11-30 11:29:24.310 [Error] (Process) ModuleNotFoundError: No module named 'ijson'"


class Server(ThreadingHTTPServer):
    """A lemond with two models, of which ``broken`` ones do not load."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.loaded: list[str] = ["user.Old"]
        self.broken: set[str] = set()
        self.stream: list[bytes] = events("One", " two", tokens=3)
        self.prompts: list[str] = []
        self.asked: list[str] = []
        self.break_after = 10**6


def events(*texts: str, tokens: int | None) -> list[bytes]:
    """Server-sent events of an answer."""
    told: list[Any] = [{"choices": [{"delta": {"role": "assistant"}}]}]
    told += [{"choices": [{"delta": {"content": text}}]} for text in texts]
    told.append({"choices": [{"delta": {}, "finish_reason": "length"}]})
    if tokens is not None:
        told.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}})
    return [b"data: " + json.dumps(one).encode() + b"\n\n" for one in told] + [b"data: [DONE]\n\n"]


class Handler(BaseHTTPRequestHandler):
    """lemond's routes, as far as the burn test needs them."""

    server: Server

    def do_GET(self) -> None:
        if self.path == "/v1/health":
            entries = [
                {"model_name": n, "launch_command": ["x", "--api-key", KEY]} for n in self.server.loaded
            ]
            self.answer(200, {"status": "ok", "version": "1", "all_models_loaded": entries})
        elif self.path == "/v1/models":
            data = [{"id": "A", "labels": []}, {"id": "Embed", "labels": ["embeddings"]}]
            self.answer(200, {"data": data})
        elif self.path == "/live":
            self.answer(200, {"status": "ok"})
        else:
            self.answer(200, {"id": self.path.rsplit("/", 1)[1], "checkpoint": "org/x", "recipe": "vllm"})

    def do_POST(self) -> None:
        server = self.server
        assert self.headers["Authorization"] == f"Bearer {KEY}"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append(f"{self.path.removeprefix('/v1/')} {body.get('model_name', '')}".strip())
        if self.path == "/v1/unload":
            server.loaded.clear()
            self.answer(200, {"status": "success"})
        elif self.path == "/v1/load" and body["model_name"] in server.broken:
            self.answer(500, {"error": {"message": "vllm-server failed to start within timeout"}})
        elif self.path == "/v1/load":
            server.loaded.append(body["model_name"])
            self.answer(200, {"status": "success"})
        else:
            server.prompts.append(body["messages"][0]["content"])
            self.speak()

    def speak(self) -> None:
        if len(self.server.prompts) > self.server.break_after:
            self.answer(500, {"error": {"message": f"engine died, key={KEY}"}})
            return
        self.send_response(200)
        self.end_headers()
        for line in self.server.stream:
            self.wfile.write(line)
            time.sleep(0.01)

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield running
        running.shutdown()


def journal(*lines: str) -> Any:
    def runner(
        argv: Sequence[str], _env: Mapping[str, str], _stdin: str | None, _timeout: float | None
    ) -> Completed:
        text = "\n".join(json.dumps({"MESSAGE": line}) for line in lines)
        return Completed(tuple(argv), 0, text if argv[0] == "journalctl" else "", "")

    return runner


def target(server: Server) -> Target:
    return Target(f"http://127.0.0.1:{server.server_port}", "A", 20, KEY, timeout=5)


METHOD = bench.Method(runs=3, warmup=1, max_tokens=20, concurrency=(1, 3), timeout=5, load_timeout=5)


def burn(server: Server, host: Host, names: list[str], fresh: bool = False) -> dict[str, Any]:
    client = Lemond(f"http://127.0.0.1:{server.server_port}", KEY)
    return bench_session.run(host, client, bench.Bench(host, client, METHOD, KEY), names, METHOD, fresh)


# --- one request -------------------------------------------------------------------


def test_the_stopwatch(server: Server) -> None:
    sample = bench_request.measure(target(server), 1)
    assert (sample.prompt_tokens, sample.completion_tokens, sample.finish_reason) == (7, 3, "length")
    # The role's event holds no text: the first token is the second event, 10 ms later.
    assert 0.01 <= sample.ttft < sample.seconds - 0.02
    assert sample.tokens_per_second == pytest.approx(3 / sample.seconds)


def test_rates_by_the_definition() -> None:
    sample = Sample(0.5, 2.5, 7, 5, "stop")
    assert sample.tokens_per_second == 2
    assert sample.decode_tokens_per_second == 2
    assert Sample(0.5, 0.5, 7, 1, "stop").decode_tokens_per_second is None


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (events("text", tokens=None), "without usage"),
        (events(tokens=3), "no text"),
        ([b'data: {"error": {"message": "inside 200"}}\n\n'], "inside 200"),
        ([b'{"error": {"message": "no stream at all"}}'], "no stream at all"),
        ([b"data: {broken\n\n"], "broke off"),
        ([], "no text"),
        ([b"data: null\n\n"], "no object"),
        ([b"data: [1]\n\n"], "no object"),
        ([b'data: {"choices": [null, 1]}\n\n'], "no text"),
        ([b'data: {"choices": {"delta": 1}}\n\n'], "no text"),
        ([b'data: {"choices": [{"delta": "x"}]}\n\n'], "no text"),
        ([*events("x", tokens=None)[:-1], b'data: {"usage": {"completion_tokens": "many"}}\n\n'], "usage"),
        ([*events("x", tokens=None)[:-1], b'data: {"usage": [1]}\n\n'], "usage"),
    ],
)
def test_what_is_no_answer(server: Server, stream: list[bytes], why: str) -> None:
    server.stream = stream
    with pytest.raises(RequestFailed, match=why):
        bench_request.measure(target(server), 1)


def test_an_empty_error_beside_a_good_answer_is_none(server: Server) -> None:
    server.stream = [line.replace(b'{"choices', b'{"error": null, "choices') for line in server.stream]
    assert bench_request.measure(target(server), 1).completion_tokens == 3


def test_an_answer_that_trickles_ends() -> None:
    seconds = iter(range(0, 10**6, 600))
    lines = (b'data: {"choices": [{"delta": {"content": "x"}}]}\n' for _turn in range(1000))
    with pytest.raises(RequestFailed, match="not complete after 3600 s"):
        bench_request.read(lines, lambda: next(seconds))


def test_nobody_listens() -> None:
    with pytest.raises(RequestFailed, match="broke off"):
        bench_request.measure(Target("http://127.0.0.1:1", "A", 1), 1)


# --- one model -----------------------------------------------------------------------


def test_a_model_from_load_to_many_clients(server: Server, tmp_path: Path) -> None:
    told = burn(server, Host(str(tmp_path), journal()), ["A"])
    (model,) = told["models"]
    assert model["status"] == "ok" and model["failure"] is None
    assert server.asked[:4] == ["unload", "load A", "unload", "load A"]
    assert model["load"]["cold"] is not None and model["load"]["warm"] is not None
    assert len(model["runs"]) == model["tokens_per_second"]["count"] == 3
    assert [(one["clients"], one["requests"], one["failed"]) for one in model["concurrency"]] == [
        (1, 2, 0),
        (3, 6, 0),
    ]
    assert [one["tokens"] for one in model["concurrency"]] == [6, 18]
    # No prompt is asked twice: a cached prefix would make the time to first token too good.
    assert len(set(server.prompts)) == len(server.prompts) == 1 + 3 + 2 + 6
    assert model["args"] == ["x", "--api-key", "***"]
    # What was loaded before is loaded again.
    assert told["restored"] == ["user.Old"] and server.loaded == ["user.Old"]


def test_a_level_is_counted_over_its_wall_clock() -> None:
    samples = [Sample(0.1, seconds, 7, 10, "stop") for seconds in (1.0, 2.0, 4.0)]
    told = bench.level(3, 4.0, samples, [f"api_key={KEY}"])
    assert (told["throughput"], told["latency_p50"], told["latency_p95"]) == (7.5, 2.0, 4.0)
    assert (told["requests"], told["failed"], told["error"]) == (4, 1, "api_key=***")


def test_one_broken_model_does_not_lose_the_others(server: Server, tmp_path: Path) -> None:
    server.broken = {"B"}
    told = burn(server, Host(str(tmp_path), journal(TRACE)), ["B", "A"])
    broken, whole = told["models"]
    assert (broken["status"], whole["status"]) == ("failed", "ok")
    assert broken["failure"]["stage"] == "load"
    assert broken["failure"]["cause"] == "missing-python-module"
    assert "ijson" in broken["failure"]["message"] and broken["failure"]["remedy"]
    assert broken["tokens_per_second"] is None


def test_an_engine_that_dies_between_runs(server: Server, tmp_path: Path) -> None:
    server.break_after = 3
    (model,) = burn(server, Host(str(tmp_path), journal()), ["A"])["models"]
    assert model["status"] == "partial" and len(model["runs"]) == 2
    assert model["failure"]["stage"] == "run"
    assert model["failure"]["message"] == "engine died, key=***"


# --- several models --------------------------------------------------------------------


def test_a_stopped_burn_test_goes_on(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(str(tmp_path), journal())
    real = bench.Bench.model

    def stop_at_second(self: bench.Bench, name: str) -> dict[str, Any]:
        if name == "B":
            raise KeyboardInterrupt
        return real(self, name)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(bench.Bench, "model", stop_at_second)
        burn(server, host, ["A", "B"])
    before = len(server.prompts)
    told = burn(server, host, ["A", "B"])
    assert told["resumed"] == ["A"]
    assert [model["status"] for model in told["models"]] == ["ok", "ok"]
    assert len(server.prompts) - before == 12  # B alone
    # The next burn test measures anew.
    assert burn(server, host, ["A", "B"])["resumed"] == []


@pytest.mark.parametrize("change", ["fresh", "models", "broken file"])
def test_numbers_of_another_burn_test_are_not_taken(server: Server, tmp_path: Path, change: str) -> None:
    host = Host(str(tmp_path), journal())
    client = Lemond(f"http://127.0.0.1:{server.server_port}", KEY)
    key = {"models": ["A"], "method": METHOD.public(), **bench_session.environment(host, client)}
    bench_session.Session(host, key, False).keep({"model": "A", "status": "ok"})
    assert bench_session.Session(host, key, False).resumed == ["A"]
    if change == "broken file":
        host.write(bench_session.SESSION, '{"key": ')
    other = {**key, "models": ["A", "B"]} if change == "models" else key
    assert bench_session.Session(host, other, change == "fresh").resumed == []


@pytest.mark.parametrize(
    "path",
    [
        paths.LEMOND_DEFAULTS,
        paths.VLLM_UNIT,
        "/etc/systemd/system/lemond.service.d/mine.conf",
        "/var/lib/lemonade/recipe_options.json",
    ],
)
def test_numbers_of_an_engine_with_other_arguments_are_not_taken(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    host = Host(str(tmp_path), journal())
    host.write(path, "--enforce-eager")
    real = bench.Bench.model

    def stop_at_second(self: bench.Bench, name: str) -> dict[str, Any]:
        if name == "B":
            raise KeyboardInterrupt
        return real(self, name)

    for text, resumed in (("--enforce-eager", ["A"]), ("--max-num-seqs 2", [])):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(bench.Bench, "model", stop_at_second)
            burn(server, host, ["A", "B"])
        host.write(path, text)
        assert burn(server, host, ["A", "B"])["resumed"] == resumed


def test_only_one_burn_test_at_a_time(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    with bench_session.alone(host):
        second = bench_session.alone(host)
        with pytest.raises(Refused, match=rf"process {os.getpid()}\); one that was interrupted"):
            second.__enter__()
    with bench_session.alone(host):  # it is over
        pass


def test_a_failed_model_is_tried_again(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    bench_session.Session(host, {}, False).keep({"model": "A", "status": "partial"})
    assert bench_session.Session(host, {}, False).resumed == []
    assert paths.STATE_DIR in bench_session.SESSION


def test_which_models(server: Server) -> None:
    client = Lemond(f"http://127.0.0.1:{server.server_port}", KEY)
    assert bench_session.chosen(client, [], False) == ["user.Old"]
    assert bench_session.chosen(client, [], True) == ["A"]  # no embeddings
    assert bench_session.chosen(client, ["X", "X"], True) == ["X"]
    server.loaded.clear()
    with pytest.raises(Refused, match="No model is loaded"):
        bench_session.chosen(client, [], False)
