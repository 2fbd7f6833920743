# SPDX-License-Identifier: Apache-2.0
"""A lemond that streams, stalls and breaks, for the burn test's tests. Real HTTP on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "canary-9d2f"


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


@contextmanager
def serving() -> Iterator[Server]:
    """Such a server, running."""
    with Server() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield running
        running.shutdown()
