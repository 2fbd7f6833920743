# SPDX-License-Identifier: Apache-2.0
"""The burn test of one model and of several, against a server that breaks; a stopped one goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from bench_server import KEY, Server, serving

from lemonade_deploy.domain import bench, bench_session, paths
from lemonade_deploy.domain.bench_request import Sample
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.lemond_api import Lemond, LemondUnreachable
from lemonade_deploy.domain.refusal import Refused

TRACE = "2026-11-30 11:29:24.310 [Error] (Process) ModuleNotFoundError: No module named 'ijson'"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def journal(*lines: str) -> Any:
    def runner(
        argv: Sequence[str], _env: Mapping[str, str], _stdin: str | None, _timeout: float | None
    ) -> Completed:
        text = "\n".join(json.dumps({"MESSAGE": line}) for line in lines)
        return Completed(tuple(argv), 0, text if argv[0] == "journalctl" else "", "")

    return runner


METHOD = bench.Method(runs=3, warmup=1, max_tokens=20, concurrency=(1, 3), timeout=5, load_timeout=5)


def burn(server: Server, host: Host, names: list[str], fresh: bool = False) -> dict[str, Any]:
    client = Lemond(f"http://127.0.0.1:{server.server_port}", KEY)
    return bench_session.run(host, client, bench.Bench(host, client, METHOD, KEY), names, METHOD, fresh)


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


class Leaving(Lemond):
    """lemond goes down after B was loaded, and is back for the next model."""

    def loaded(self, name: str) -> dict[str, Any] | None:
        if name == "B":
            raise LemondUnreachable("GET /v1/health: Connection refused")
        return super().loaded(name)


def no_journal(
    argv: Sequence[str], _env: Mapping[str, str], _stdin: str | None, _timeout: float | None
) -> Completed:
    return Completed(tuple(argv), 1, "", "No journal files were found.")


@pytest.mark.parametrize("runner", [journal(), no_journal])
def test_a_lemond_that_leaves_between_two_stages_does_not_lose_the_others(
    server: Server, tmp_path: Path, runner: Any
) -> None:
    client, host = Leaving(f"http://127.0.0.1:{server.server_port}", KEY), Host(str(tmp_path), runner)
    told = bench_session.run(host, client, bench.Bench(host, client, METHOD, KEY), ["B", "A"], METHOD, False)
    left, whole = told["models"]
    assert (left["status"], whole["status"]) == ("failed", "ok")
    assert "Connection refused" in left["failure"]["message"] and left["load"]["warm"] is not None


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
