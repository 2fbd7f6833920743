# SPDX-License-Identifier: Apache-2.0
"""One streamed completion with a stopwatch: time to first token, wall clock, tokens by usage.

lemond's /v1/stats says 0.0 tokens/s after a reply of vLLM that was not streamed: all is measured here.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

PATH = "/v1/chat/completions"
PROMPT = "Write a long story about a lighthouse keeper who repairs radios. Tell every detail."
LONGEST = 3600  # s for a whole answer: one that trickles must not hold a burn test for ever


class RequestFailed(Exception):
    """A request that brought no complete answer, in the server's words where it said any."""


@dataclass(frozen=True)
class Sample:
    """Seconds are wall clock from before the request is sent; ``ttft`` is to the first piece of text."""

    ttft: float
    seconds: float
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the answer by the whole wall clock, as the community's tables count."""
        return self.completion_tokens / self.seconds

    @property
    def decode_tokens_per_second(self) -> float | None:
        """The same after the first token; None where there was but one."""
        after = self.seconds - self.ttft
        return (self.completion_tokens - 1) / after if self.completion_tokens > 1 and after > 0 else None

    def public(self) -> dict[str, Any]:
        """For JSON. Seconds to the microsecond: no rate is computed from rounded ones."""
        decode = self.decode_tokens_per_second
        return {
            "ttft": round(self.ttft, 6),
            "seconds": round(self.seconds, 6),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "finish_reason": self.finish_reason,
            "tokens_per_second": round(self.tokens_per_second, 3),
            "decode_tokens_per_second": None if decode is None else round(decode, 3),
        }


@dataclass(frozen=True)
class Target:
    """Whom to ask. ``timeout`` in seconds is for each wait for a piece of the answer."""

    endpoint: str
    model: str
    max_tokens: int
    api_key: str = ""
    prompt: str = PROMPT
    timeout: float = 1800


def body(target: Target, number: int) -> dict[str, Any]:
    """The request. The number stands first, so that no prefix in the engine's cache fits."""
    return {
        "model": target.model,
        "messages": [{"role": "user", "content": f"{number}. {target.prompt}"}],
        "max_tokens": target.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def measure(target: Target, number: int, clock: Callable[[], float] = time.perf_counter) -> Sample:
    """Ask once. Raises RequestFailed, also for an error inside HTTP 200 (lemonade issue 2649)."""
    url = urlsplit(target.endpoint)
    # http.client takes no proxy from the environment: the host's own requests and the key stay here.
    connection = http.client.HTTPConnection(url.hostname or "", url.port or 80, timeout=target.timeout)
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    data = json.dumps(body(target, number)).encode()
    began = clock()
    try:
        connection.request("POST", PATH, data, headers)
        reply = connection.getresponse()
        if reply.status != 200:
            raise RequestFailed(_said(reply.read()) or f"HTTP {reply.status}")
        return read(iter(reply.readline, b""), lambda: clock() - began)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RequestFailed(f"the answer broke off: {error or type(error).__name__}") from error
    finally:
        connection.close()


def read(lines: Iterable[bytes], elapsed: Callable[[], float]) -> Sample:
    """The events of a stream as a sample; ``elapsed()`` are the seconds since the request."""
    first: float | None = None
    finish, odd = "", b""
    usage: dict[str, Any] = {}
    for line in lines:
        if not line.startswith(b"data:"):
            odd += line[:400] if line.strip() and not line.startswith(b":") else b""
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            break
        event = _event(data)
        for choice in _objects(event.get("choices")):
            if first is None and _text(choice.get("delta")):
                first = elapsed()
            finish = str(choice.get("finish_reason") or finish)
        usage = event["usage"] if isinstance(event.get("usage"), dict) else usage
        if elapsed() > LONGEST:
            raise RequestFailed(f"the answer is not complete after {LONGEST} s")
    seconds = elapsed()
    tokens = _count(usage.get("completion_tokens"))
    if first is None:
        raise RequestFailed(_said(odd) or "the answer holds no text")
    if tokens <= 0:
        raise RequestFailed("the stream ended without usage: tokens are counted, not assumed")
    return Sample(first, seconds, _count(usage.get("prompt_tokens")), tokens, finish)


def _event(data: bytes) -> dict[str, Any]:
    event = json.loads(data)
    if not isinstance(event, dict):
        raise RequestFailed(f"an event of the stream is no object: {_said(data)}")
    if event.get("error"):
        raise RequestFailed(_said(data))
    return event


def _objects(found: Any) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _count(found: Any) -> int:
    """Tokens; what is no number counts as none."""
    return found if isinstance(found, int) else 0


def _text(delta: Any) -> str:
    if not isinstance(delta, dict):
        return ""
    return str(delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content") or "")


def _said(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").strip()
    try:
        error = json.loads(text)
    except ValueError:
        return text[:400]
    error = error.get("error", error) if isinstance(error, dict) else error
    return str(error.get("message") or error)[:400] if isinstance(error, dict) else str(error)[:400]
