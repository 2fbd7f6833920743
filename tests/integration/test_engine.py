# SPDX-License-Identifier: Apache-2.0
"""The lab's bundles for real: built, joined from their parts, checked, started as lemond does, asked.

No root needed. The model comes from the simulated hub over HTTP, fetched by the engine's own client
(vLLM) or laid out as lemond's pull does (light).
"""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.domain import bundle_check, bundle_layout
from lemonade_deploy.domain.host import Host
from lemonade_deploy.lab import engine
from lemonade_deploy.lab.engine import hub, simulated
from lemonade_deploy.lab.engine.release import DOWNLOADS, HUB
from lemonade_deploy.lab.paths import cache_dir
from lemonade_deploy.lab.services import faults
from lemonade_deploy.lab.services.answers import Hook
from lemonade_deploy.lab.services.server import AccessLog, Handler, Server

FAMILY = "gfx1151"
READY_SECONDS = 300  # vLLM on a loaded machine
QUESTION = "What is 2+2?"
ANSWER = "The answer to this classic math problem is 4."  # SmolLM2, greedy, the same on both engines


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the user nobody can pass (pytest's own cannot): the checks of a bundle run as nobody."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def unpack(made: engine.EngineRelease, www: Path, target: Path) -> Path:
    """Join the parts and unpack them, as upstream's README does."""
    release = made.releases[0]
    folder = www / DOWNLOADS / release.tag
    parts = [folder / asset.name for asset in release.assets if asset.name.endswith(".tar.gz")]
    assert len(parts) >= 2
    joined = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(fileobj=joined) as archive:
        archive.extractall(target, filter="tar")
    return target


def ask(port: int, path: str, body: object = None) -> Any:
    """The JSON (or text) that the engine answers; OSError while it does not listen."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        method = "GET" if body is None else "POST"
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status in (200, 503), text
        if answer.status == 503:
            raise ConnectionRefusedError(text)
        return json.loads(text) if text.startswith("{") else text
    finally:
        connection.close()


@contextmanager
def started(bundle: Path, repository: str, name: str, folder: Path, **env: str) -> Iterator[tuple[int, int]]:
    """The engine with lemond's arguments (and those of its Qwen3 family); gives port and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    argv = [str(bundle / bundle_layout.SERVER), "--model", repository, "--port", str(port)]
    argv += ["--host", "127.0.0.1", "--served-model-name", name, "--enforce-eager", "--max-model-len", "2048"]
    argv += ["--enable-prefix-caching", "--kv-cache-memory-bytes", "128M"]
    argv += ["--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder"]
    log = folder / "engine.log"
    environment = {**os.environ, "HOME": str(folder), "HF_HOME": str(folder / "hf"), **env}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            argv, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        until = time.monotonic() + READY_SECONDS
        while not _ready(port):
            assert process.poll() is None and time.monotonic() < until, log.read_text()[-4000:]
            time.sleep(0.2)
        yield port, process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def _ready(port: int) -> bool:
    try:
        ask(port, "/health")
    except OSError:
        return False
    return True


def converse(port: int, name: str) -> dict[str, Any]:
    """One greedy chat completion, with the shape that the kit's verification wants."""
    message = {"role": "user", "content": QUESTION}
    body = {"model": name, "messages": [message], "temperature": 0, "max_tokens": 64}
    answer: dict[str, Any] = ask(port, "/v1/chat/completions", body)
    assert answer["model"] == name
    assert answer["usage"]["completion_tokens"] > 0
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    return answer


def cmdline(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def test_a_second_build_changes_nothing(tmp_path: Path) -> None:
    first = engine.build(cache_dir(), tmp_path, "light")
    states = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert engine.build(cache_dir(), tmp_path, "light") == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == states


def test_light_passes_the_checks_and_answers_under_its_own_name(place: Path) -> None:
    made = engine.build(cache_dir(), place / "www", "light")
    bundle = unpack(made, place / "www", place / "bundle")
    assert bundle_layout.missing(str(bundle), FAMILY) == []
    bundle_check.check(Host(), str(bundle), FAMILY)
    assert json.loads((bundle / simulated.METADATA).read_text())["engine"] == "light"

    model = made.models[0]
    cached = place / "hf" / "hub" / f"models--{model.repository.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("commit")
    (cached / "snapshots").mkdir()
    (cached / "snapshots" / "commit").symlink_to(place / "www" / HUB / model.repository)
    with started(bundle, model.repository, model.name, place) as (port, pid):
        assert model.name in [item["id"] for item in ask(port, "/v1/models")["data"]]
        assert converse(port, model.name)["choices"][0]["message"]["content"] == ANSWER
        assert "llama-server" in cmdline(pid) and "vllm.entrypoints" not in cmdline(pid)


@contextmanager
def model_hub(www: Path) -> Iterator[str]:
    """The simulated hub on loopback, by HTTP; gives its address."""
    hooks: dict[str, Hook] = {"127.0.0.1": lambda request, _site: hub.hub(request, www / HUB)}
    (www / "127.0.0.1").mkdir()
    log = AccessLog(io.StringIO())
    handler = partial(Handler, www=www, hooks=hooks, faults=faults.Faults(www), log=log)
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.full
def test_vllm_fetches_both_models_from_the_hub_and_answers(place: Path) -> None:
    made = engine.build(cache_dir(), place / "www", "vllm")
    bundle = unpack(made, place / "www", place / "bundle")
    bundle_check.check(Host(), str(bundle), FAMILY)
    with model_hub(place / "www") as address:
        for model in made.models:
            with started(bundle, model.repository, model.name, place, HF_ENDPOINT=address) as (port, pid):
                answer = converse(port, model.name)
                assert answer["system_fingerprint"].startswith("vllm-")
                assert "vllm.entrypoints.openai.api_server" in cmdline(pid)
            content = answer["choices"][0]["message"]["content"]
            assert content == ANSWER if model is made.models[0] else content.strip()
