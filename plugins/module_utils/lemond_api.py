# SPDX-License-Identifier: Apache-2.0
"""lemond's HTTP interface, as far as the kit needs it.

Routes and shapes: lemonade-sdk/lemonade src/cpp/server/server.cpp, tried on Debian's 2026.39.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote


class LemondUnreachable(OSError):
    """Nothing answers at the endpoint, or not within the time given."""


class LemondSilent(LemondUnreachable):
    """Its time ran out without an answer."""


def _unreachable(request: str, error: Exception) -> LemondUnreachable:
    reason = getattr(error, "reason", error)
    kind = LemondSilent if isinstance(reason, TimeoutError) else LemondUnreachable
    return kind(f"{request}: {reason}")


@dataclass(frozen=True)
class Answer:
    """HTTP status, the decoded JSON (None where the body is none) and the seconds it took."""

    status: int
    body: Any
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the request was done: HTTP 2xx and no error in the body.

        An error can come back inside HTTP 200 (lemonade issue 2649).
        """
        return 200 <= self.status < 300 and not self.field("error")

    def field(self, name: str) -> Any:
        """A field of the body, None where it has none or is no object."""
        return self.body.get(name) if isinstance(self.body, Mapping) else None

    def entries(self, name: str) -> list[dict[str, Any]]:
        """The objects of a list in the body; [] for an error, and for anything else that stands there."""
        found = self.field(name) if self.ok else None
        return [dict(one) for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []

    @property
    def error(self) -> str:
        """The error's own words. lemond has three shapes for them."""
        error = self.body.get("error", self.body) if isinstance(self.body, Mapping) else self.body
        if isinstance(error, Mapping):
            error = error.get("message") or json.dumps(error)
        return str(error) if error else f"HTTP {self.status}"


class Lemond:
    """A client of one lemond. ``endpoint`` like ``http://127.0.0.1:13305``; timeouts in seconds."""

    unit = "lemond.service"  # whose journal tells more

    def __init__(self, endpoint: str, api_key: str = "") -> None:
        self.endpoint = endpoint.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        # A proxy from the environment must never see the host's own requests, or the key.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, method: str, path: str, body: Any = None, timeout: float = 30) -> Answer:
        """One request; HTTP errors are answers too. Raises LemondUnreachable."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310  the endpoint is http by construction
            self.endpoint + path, data=data, headers=self._headers, method=method
        )
        began = time.monotonic()
        try:
            with self._opener.open(request, timeout=timeout) as reply:
                status, raw = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            status, raw = error.code, _body(error)
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(f"{method} {self.endpoint}{path}", error) from error
        return Answer(status, decode(raw), time.monotonic() - began)

    def events(self, path: str, body: Any, silence: float) -> Iterator[tuple[str, Any]]:
        """(event, data) of a POST that is answered by a stream; ("", body) of an answer that is none.

        *silence*: seconds without a byte after which it is given up. Raises LemondUnreachable.
        """
        request = urllib.request.Request(  # noqa: S310  the endpoint is http by construction
            self.endpoint + path, data=json.dumps(body).encode(), headers=self._headers, method="POST"
        )
        try:
            with self._opener.open(request, timeout=silence) as reply:
                if reply.headers.get_content_type() != "text/event-stream":
                    yield "", decode(reply.read())
                    return
                yield from _events(reply)
        except urllib.error.HTTPError as error:
            said = decode(_body(error))
            yield (
                "",
                said if isinstance(said, Mapping) else {"error": f"HTTP {error.code}: {said or 'no words'}"},
            )
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(f"POST {self.endpoint}{path}", error) from error

    def get(self, path: str, timeout: float = 30) -> Answer:
        """GET *path*."""
        return self.call("GET", path, timeout=timeout)

    def post(self, path: str, body: Any, timeout: float = 30) -> Answer:
        """POST *body* as JSON."""
        return self.call("POST", path, body, timeout)

    def alive(self) -> bool:
        """Whether /live answers; it needs no key."""
        try:
            return self.get("/live", timeout=5).ok
        except LemondUnreachable:
            return False

    def model(self, name: str) -> dict[str, Any] | None:
        """What lemond knows about a model, or None."""
        answer = self.get(f"/v1/models/{quote(name, safe='')}")
        return dict(answer.body) if answer.ok and isinstance(answer.body, Mapping) else None

    def model_names(self) -> list[str]:
        """Every model this lemond offers on this host, not only downloaded ones."""
        answer = self.get("/v1/models?show_all=true")
        return [str(model["id"]) for model in answer.entries("data") if "id" in model]

    def loaded(self, name: str) -> dict[str, Any] | None:
        """The entry of /v1/health for a loaded model, or None."""
        names = {name, name.removeprefix("user.")}
        entries = self.get("/v1/health").entries("all_models_loaded")
        return next((entry for entry in entries if entry.get("model_name") in names), None)


def _body(error: urllib.error.HTTPError) -> bytes:
    """What an error says; the status tells enough where the words break off."""
    try:
        return error.read()
    except (OSError, http.client.HTTPException):
        return b""


def _events(lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    """Server-sent events (WHATWG HTML 9.2), one line of data each."""
    name = ""
    for line in lines:
        key, _colon, value = line.decode("utf-8", "replace").strip().partition(":")
        if key == "event":
            name = value.strip()
        elif key == "data":
            yield name, decode(value.encode())
            name = ""


def decode(raw: bytes) -> Any:
    """JSON of a reply, its text where it is none, None where it is empty."""
    text = raw.decode("utf-8", "replace")
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def wait_alive(client: Lemond, running: Callable[[], bool], timeout: float) -> bool:
    """Wait until /live answers. ``running()`` says whether it is still worth waiting.

    ``timeout`` is in seconds. lemond announces nothing when it is ready, so it is asked.
    """
    deadline = time.monotonic() + timeout
    while not client.alive():
        if time.monotonic() > deadline or not running():
            return False
        time.sleep(0.2)
    return True
