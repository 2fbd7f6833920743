# SPDX-License-Identifier: Apache-2.0
"""lemond's HTTP interface as seen on the host under test."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

# Where the command leaves the release that the inventory names.
WANTED_RELEASE = pytest.StashKey[str]()
LONG = 1800  # s; a completion may have to load its model first

# Runs on the host, so that the API key never leaves it. Arguments: method, path, body, timeout, with key.
_REQUEST = r"""
import json, re, sys, time, urllib.error, urllib.request
method, path, body, timeout, with_key, base = sys.argv[1:7]
key = ""
try:
    found = re.search(r'^LEMONADE_API_KEY="(.*)"$', open("/etc/lemonade-deploy/lemond.env").read(), re.M)
    key = re.sub(r"\\(.)", r"\1", found[1]) if found else ""
except FileNotFoundError:
    pass
headers = {"Content-Type": "application/json"}
if key and with_key == "yes":
    headers["Authorization"] = "Bearer " + key
request = urllib.request.Request(base + path, body.encode() or None, headers, method=method)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
began, first = time.monotonic(), None
try:
    with opener.open(request, timeout=float(timeout)) as reply:
        status, text = reply.status, ""
        for line in reply:
            first = first or time.monotonic() - began
            text += line.decode("utf-8", "replace")
except urllib.error.HTTPError as error:
    status, text = error.code, error.read().decode("utf-8", "replace")
except OSError as error:
    status, text = 0, str(getattr(error, "reason", error))
print(json.dumps({"status": status, "text": text, "seconds": time.monotonic() - began, "first": first}))
"""


@dataclass(frozen=True)
class Reply:
    """``status`` is 0 where nothing answered. ``first`` is the seconds to the first line."""

    status: int
    text: str
    seconds: float
    first: float | None

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.text)


class Api:
    """lemond's HTTP interface as seen on the host."""

    def __init__(self, host: Host, base: str) -> None:
        self._host = host
        self.base = base

    def call(
        self, method: str, path: str, body: Any = None, timeout: float = 30, key: bool = True, base: str = ""
    ) -> Reply:
        """One request, sent on the host."""
        sent = json.dumps(body) if body is not None else ""
        argv = [
            "/usr/bin/python3",
            "-c",
            _REQUEST,
            method,
            path,
            sent,
            str(timeout),
            "yes" if key else "no",
            base or self.base,
        ]
        return Reply(**json.loads(self._host.check_output(shlex.join(argv))))

    def get(self, path: str, key: bool = True) -> Reply:
        """GET."""
        return self.call("GET", path, key=key)

    def busy(self) -> bool:
        """Whether requests of others are in flight: nobody of us asks now. lemond says it, vLLM counts it."""
        health = self.get("/v1/health")
        entries = health.json.get("all_models_loaded") if health.status == 200 else None
        if entries is not None:
            return any(entry.get("is_busy") or entry.get("is_streaming") for entry in entries)
        counters = re.findall(
            r"^vllm:num_requests_(?:running|waiting)(?:{.*})? (\S+)$", self.get("/metrics").text, re.M
        )
        return any(float(value) > 0 for value in counters)

    def chat(self, model: str, **more: Any) -> Reply:
        """A chat completion."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "What is 2+2?"}],
            "max_tokens": 256,
            "temperature": 0,
            **more,
        }
        return self.call("POST", "/v1/chat/completions", body, timeout=LONG)
