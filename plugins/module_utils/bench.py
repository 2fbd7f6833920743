# SPDX-License-Identifier: Apache-2.0
"""The burn test of one model: loads, warm-up, single stream, many streams. What fails is told, not raised."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from . import bench_stats, lemond_log, progress
from .bench_request import PROMPT, RequestFailed, Sample, Target, measure
from .host import CommandFailed, Host
from .lemond_api import Lemond, LemondUnreachable
from .lemond_service import HF_HOME
from .scrub import scrub

ROUNDS = 2  # requests that each of the concurrent clients sends, one after the other
_UNLOAD_TIMEOUT = 120  # s


@dataclass(frozen=True)
class Method:
    """How is measured. Seconds: ``load_timeout`` for a load, ``timeout`` for each piece of text."""

    runs: int = 5
    warmup: int = 2
    max_tokens: int = 200
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16)
    prompt: str = PROMPT
    load_timeout: float = 1800
    timeout: float = 600

    def public(self) -> dict[str, Any]:
        """For JSON, and to tell whether a stopped burn test may go on."""
        return {**asdict(self), "concurrency": list(self.concurrency), "rounds": ROUNDS}


class Stopped(Exception):
    """A stage of the burn test failed."""

    def __init__(self, stage: str, message: str, since: float) -> None:
        self.stage = stage
        self.since = since
        super().__init__(message)


class Bench:
    """One host's burn test. ``ask`` is replaced in tests."""

    def __init__(
        self,
        host: Host,
        client: Lemond,
        method: Method,
        api_key: str = "",
        ask: Callable[[Target, int], Sample] = measure,
    ) -> None:
        self._host = host
        self._client = client
        self._method = method
        self._key = api_key
        self._ask = ask
        self._number = 0
        self._lock = threading.Lock()
        self.place = ""  # which of the models, for who watches

    def model(self, name: str) -> dict[str, Any]:
        """Everything measured of a model. ``status`` is ok, partial (something was measured) or failed."""
        result: dict[str, Any] = {
            "model": name,
            "checkpoint": "",
            "recipe": "",
            "status": "ok",
            "load": {"cold": None, "warm": None},
            "runs": [],
            "concurrency": [],
            "args": [],
            "failure": None,
        }
        began = time.time()
        try:
            entry = self._client.model(name) or {}
            result.update({key: str(entry.get(key) or "") for key in ("checkpoint", "recipe")})
            self._measure(name, result)
        except (Stopped, OSError) as error:  # OSError: lemond has gone between two stages, or a model's file
            result["status"] = "partial" if result["runs"] else "failed"
            stopped = error if isinstance(error, Stopped) else Stopped("measuring", str(error), began)
            result["failure"] = self._failure(stopped)
        for key in ("tokens_per_second", "ttft"):
            result[key] = bench_stats.describe([run[key] for run in result["runs"]])
        return result

    def _measure(self, name: str, result: dict[str, Any]) -> None:
        self.unload()
        drop_page_cache(self._host, result["checkpoint"])
        self._tell("cold load; the first one of a bundle compiles kernels and can take minutes")
        result["load"]["cold"] = self.load(name)
        self.unload()
        self._tell("warm load")
        result["load"]["warm"] = self.load(name)
        loaded = self._client.loaded(name) or {}
        result["args"] = [scrub(str(word), [self._key]) for word in loaded.get("launch_command") or []]
        target = Target(
            self._client.endpoint,
            name,
            self._method.max_tokens,
            self._key,
            self._method.prompt,
            self._method.timeout,
        )
        for turn in range(self._method.warmup):
            self._tell(f"warm-up {turn + 1} of {self._method.warmup}")
            self._one(target, "warm-up")
        for turn in range(self._method.runs):
            self._tell(f"run {turn + 1} of {self._method.runs}")
            result["runs"].append(self._one(target, "run").public())
        for clients in self._method.concurrency:
            self._tell(f"{clients} client(s) at once")
            result["concurrency"].append(self._level(target, clients))

    def _tell(self, text: str) -> None:
        progress.say(self._host, f"{self.place}: {text}")

    # --- loading ---------------------------------------------------------------

    def unload(self) -> None:
        """No model in memory."""
        self._post("/v1/unload", {}, _UNLOAD_TIMEOUT, "unload")

    def load(self, name: str) -> float:
        """Seconds that a load takes. Raises Stopped."""
        return self._post("/v1/load", {"model_name": name}, self._method.load_timeout, "load")

    def _post(self, path: str, body: Mapping[str, Any], timeout: float, stage: str) -> float:
        since = time.time()
        try:
            answer = self._client.post(path, body, timeout)
        except LemondUnreachable as error:
            raise Stopped(stage, str(error), since) from error
        if not answer.ok:
            raise Stopped(stage, answer.error, since)
        return round(answer.seconds, 3)

    # --- asking ------------------------------------------------------------------

    def _one(self, target: Target, stage: str) -> Sample:
        since = time.time()
        try:
            return self._ask(target, self._next())
        except RequestFailed as error:
            raise Stopped(stage, str(error), since) from error

    def _next(self) -> int:
        with self._lock:
            self._number += 1
            return self._number

    def _level(self, target: Target, clients: int) -> dict[str, Any]:
        """*clients* at once, each with its requests in turn. Raises Stopped where none is answered."""
        since, gate = time.time(), threading.Barrier(clients + 1)
        samples: list[Sample] = []
        errors: list[str] = []

        def client() -> None:
            gate.wait()
            for _turn in range(ROUNDS):
                try:
                    samples.append(self._ask(target, self._next()))
                except RequestFailed as error:
                    errors.append(str(error))

        with ThreadPoolExecutor(max_workers=clients) as pool:
            waiting = [pool.submit(client) for _client in range(clients)]
            gate.wait()
            began = time.perf_counter()
        seconds = time.perf_counter() - began
        for one in waiting:
            one.result()
        if not samples:
            raise Stopped(f"{clients} clients", errors[0], since)
        return level(clients, seconds, samples, errors)

    # --- why not -----------------------------------------------------------------

    def _failure(self, stopped: Stopped) -> dict[str, str]:
        """The cause by the engine's log, where it says one; else the words of the answer."""
        unit = self._client.unit
        diagnose = lemond_log.diagnose if unit == Lemond.unit else lemond_log.diagnose_vllm
        try:
            found = diagnose(lemond_log.read(self._host, since=stopped.since, unit=unit))
        except CommandFailed:
            found = None  # no journal, no cause
        known = found.signature if found else None
        return {
            "stage": stopped.stage,
            "cause": known.id if known else "unknown",
            "message": scrub(found.sentence() if found else str(stopped), [self._key]),
            "remedy": known.remedy if known else f"See `journalctl -u {unit} -n 200`.",
        }


def level(clients: int, seconds: float, samples: Sequence[Sample], errors: Sequence[str]) -> dict[str, Any]:
    """Throughput (tokens/s of all clients together) and latency (s, nearest-rank percentiles)."""
    latencies = [sample.seconds for sample in samples]
    tokens = sum(sample.completion_tokens for sample in samples)
    return {
        "clients": clients,
        "requests": len(samples) + len(errors),
        "failed": len(errors),
        "error": scrub(errors[0]) if errors else "",
        "seconds": round(seconds, 6),
        "tokens": tokens,
        "throughput": round(tokens / seconds, 3),
        "latency_p50": round(bench_stats.percentile(latencies, 50), 6),
        "latency_p95": round(bench_stats.percentile(latencies, 95), 6),
        "ttft_p50": round(bench_stats.percentile([sample.ttft for sample in samples], 50), 6),
        "runs": [sample.public() for sample in samples],
    }


def drop_page_cache(host: Host, checkpoint: str) -> None:
    """Let the kernel forget a model's files, and nobody else's: the next load reads them from the disk."""
    repository = checkpoint.partition(":")[0].replace("/", "--")
    if not repository:
        return
    for path in host.glob(f"{HF_HOME}/hub/models--{repository}/snapshots/*/*"):
        if os.path.isfile(host.path(path)):
            handle = os.open(host.path(path), os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
