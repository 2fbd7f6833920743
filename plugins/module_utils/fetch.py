# SPDX-License-Identifier: Apache-2.0
"""Stream a file over HTTP and go on where it broke: ranges, retries, backoff, Retry-After.

urllib, because hosts have nothing else; it uses the system's trust store, SSL_CERT_FILE
and the proxy variables. The controller uses the same code. Bytes are not trusted here:
who reads the stream compares digests.
"""

from __future__ import annotations

import functools
import http.client
import os
import random
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from dataclasses import dataclass

from .http_headers import digits, retry_after
from .module import Refused
from .scrub import addresses

READ = 1 << 18  # bytes asked for in one read
ODD_LIMIT = 2  # odd answers in a row that are final
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_BROKEN = (urllib.error.URLError, http.client.HTTPException, OSError)
# Worth another attempt; every other status from 400 up is final.
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Policy:
    """How patient a download is. Times in seconds, rate in bytes a second.

    ``attempts`` counts attempts in a row that brought no byte; any progress starts anew.
    """

    attempts: int = 6
    backoff: float = 0.5
    backoff_max: float = 30.0
    retry_after_max: float = 120.0
    timeout: float = 60.0
    slow_rate: float = 1024.0
    slow_after: float = 30.0


class FetchError(Refused):
    """The download cannot succeed; ``status`` is the HTTP status where there was one."""

    def __init__(self, found: str, remedy: str = "", status: int = 0) -> None:
        self.status = status
        super().__init__(found, remedy)


class NoAddress(FetchError):
    """What was given is no address to fetch from."""


class _Again(Exception):
    """This attempt failed; another one may not. ``wait``: seconds the server asked for.

    ``odd``: the server has another file than the expected one; once may be a proxy's accident.
    """

    def __init__(self, reason: str, wait: float | None = None, odd: bool = False) -> None:
        self.wait = wait
        self.odd = odd
        super().__init__(reason)


class Download:
    """One file on a server. ``size`` in bytes where it is known; else learned from the answer.

    *token* is sent to this server only, not to where it redirects. *kept*: who reads it keeps what came,
    and the next run goes on with that. ``ranged``: whether it gave the part that was asked for (after
    exists()).
    """

    def __init__(
        self,
        url: str,
        size: int | None = None,
        policy: Policy | None = None,
        token: str = "",
        kept: bool = False,
    ) -> None:
        self.url = url
        self.size = size
        self.retries = 0
        self.ranged = False
        self._token = token
        self._kept = kept
        self._expected = size is not None
        self._policy = policy or Policy()
        self._etag = ""
        self._odd = 0
        self._end: int | None = None
        self._sleep: Callable[[float], None] = time.sleep

    def chunks(self, start: int = 0, end: int | None = None) -> Generator[bytes, None, None]:
        """The file's bytes from offset *start* on (up to *end*, where it is given), whole or FetchError."""
        offset, failed = start, 0
        self._odd, self._end = 0, end
        while (limit := self.size if end is None else end) is None or offset < limit:
            before = offset
            try:
                for chunk in self._attempt(offset):
                    offset += len(chunk)
                    yield chunk
                if self.size is None:
                    self.size = offset  # no length was said: the end of the answer is the end
            except _Again as again:
                failed = 1 if offset > before else failed + 1
                self._pause(again, failed, offset)

    def exists(self) -> bool:
        """Whether the server has the file (404 is no). Raises FetchError for any other refusal.

        Asks for one byte: behind GitHub's redirect stand addresses that are signed for GET only.
        """
        failed = 0
        while True:
            try:
                with self._open(0, "bytes=0-0") as answer:
                    self.ranged = answer.status == 206
                    return True
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404:
                    return False
                again = self._refusal(error, 0)
                if not isinstance(again, _Again):
                    raise again from error
            except _BROKEN as error:
                again = self._broken(error)
            failed += 1
            self._pause(again, failed, 0)

    def _pause(self, again: _Again, failed: int, offset: int) -> None:
        policy = self._policy
        self.retries += 1
        self._odd = self._odd + 1 if again.odd else 0
        if failed >= policy.attempts or self._odd >= ODD_LIMIT:
            where = f" after {offset} of {self.size} bytes" if offset else ""
            raise FetchError(
                f"{self.url}: {again}{where} ({failed} attempts).",
                "Check that this machine reaches the server, then run the same command again"
                f"{'; it goes on where it was' if self._kept else ''}.",
            ) from again
        pause = min(policy.backoff * 2 ** (failed - 1), policy.backoff_max)
        pause *= 0.75 + random.random() / 2  # noqa: S311 - spreads a fleet, hides nothing
        if again.wait is not None:
            pause = max(pause, min(again.wait, policy.retry_after_max))
        self._sleep(pause)

    def _attempt(self, offset: int) -> Generator[bytes, None, None]:
        try:
            with self._open(offset) as answer:
                skip = self._check(answer, offset)
                yield from self._read(answer, offset, skip)
        except urllib.error.HTTPError as error:
            error.close()
            raise self._refusal(error, offset) from error
        except _BROKEN as error:
            raise self._broken(error) from error

    def _open(self, offset: int, span: str = "") -> http.client.HTTPResponse:
        headers = {"Accept-Encoding": "identity", "User-Agent": "lemonade-deploy"}
        if offset or span or self._end is not None:
            last = "" if self._end is None else self._end - 1
            headers["Range"] = span or f"bytes={offset}-{last}"
            if self._etag:
                headers["If-Range"] = self._etag
        try:
            request = urllib.request.Request(self.url, headers=headers)  # noqa: S310
            if self._token:
                request.add_unredirected_header("Authorization", f"Bearer {self._token}")
            # urllib takes a login for a part of the host's name, and its errors quote that.
            if request.type not in ("http", "https") or addresses(self.url) != self.url:
                raise NoAddress(f"{addresses(self.url)}: only http and https are fetched, without a login.")
            answer: http.client.HTTPResponse = _opener(_surroundings()).open(
                request, timeout=self._policy.timeout
            )
            return answer
        except (ValueError, http.client.InvalidURL) as error:
            if isinstance(error, OSError):  # of TLS
                raise
            raise NoAddress(f"{self.url}: that is no address to fetch from ({error}).") from error

    def _check(self, answer: http.client.HTTPResponse, offset: int) -> int:
        """Compare what the headers say with what is known; bytes to skip before *offset*."""
        etag = answer.headers.get("ETag", "")
        etag = "" if etag.startswith("W/") else etag
        if offset and self._etag and etag != self._etag and not self._expected:
            # Nothing else would notice; where a digest is known, that is the better judge.
            raise FetchError(f"{self.url}: the file changed while it was downloaded.")
        self._etag = etag
        if answer.status == 206:
            found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if not found or int(found[1]) != offset:
                raise _Again(
                    f"asked for bytes from {offset}, answered {answer.headers.get('Content-Range')!r}"
                )
            self._total(None if found[3] == "*" else int(found[3]))
            return 0
        self._total(digits(answer.headers.get("Content-Length", "")))
        return offset

    def _total(self, total: int | None) -> None:
        if total is None or total == self.size:
            return
        if self.size is not None:
            raise _Again(f"expected {self.size} bytes, the server has {total}", odd=True)
        self.size = total

    def _read(self, answer: http.client.HTTPResponse, offset: int, skip: int) -> Generator[bytes, None, None]:
        meter = _Meter(self._policy)
        end = self.size if self._end is None else self._end
        left = None if end is None else end - offset + skip
        while left is None or left > 0:
            began = time.monotonic()
            chunk = answer.read1(READ if left is None else min(READ, left))
            meter.note(len(chunk), time.monotonic() - began)
            if not chunk:
                break
            left = None if left is None else left - len(chunk)
            dropped, skip = min(skip, len(chunk)), max(skip - len(chunk), 0)
            if dropped < len(chunk):
                yield chunk[dropped:] if dropped else chunk
        if left:
            raise _Again(f"the connection ended {left} bytes too early")

    def _broken(self, error: BaseException) -> _Again:
        """Another attempt, except where the server's certificate is the trouble."""
        if isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
            raise FetchError(
                f"{self.url}: {_reason(error)}.",
                "Put a private authority into the trust store, or name its file in SSL_CERT_FILE.",
            ) from error
        return _Again(_reason(error))

    def _refusal(self, error: urllib.error.HTTPError, offset: int) -> Exception:
        if error.code in _TRANSIENT:
            wait = retry_after(error.headers.get("Retry-After", ""))
            return _Again(f"HTTP {error.code} {error.reason}", wait)
        if error.code == 416:
            return _Again(f"the server has no bytes after {offset} (HTTP 416)", odd=True)
        return FetchError(f"{self.url}: HTTP {error.code} {error.reason}.", status=error.code)


def _surroundings() -> tuple[tuple[str, str], ...]:
    """The variables that an opener reads when it is made."""
    names = [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("SSL_CERT_")]
    return tuple((name, os.environ[name]) for name in sorted(names))


@functools.lru_cache(maxsize=4)
def _opener(_surroundings: tuple[tuple[str, str], ...]) -> urllib.request.OpenerDirector:
    """One opener for all: from Python 3.12 each one reads the trust store, some 20 ms for every chunk."""
    return urllib.request.build_opener()


class _Meter:
    """Time spent waiting for bytes; a drip below the policy's rate is a failed attempt."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._bytes, self._seconds = policy, 0, 0.0

    def note(self, amount: int, seconds: float) -> None:
        self._bytes += amount
        self._seconds += seconds
        if self._seconds < self._policy.slow_after:
            return
        if self._bytes < self._policy.slow_rate * self._seconds:
            raise _Again(f"only {self._bytes} bytes in {self._seconds:.0f} s")
        self._bytes, self._seconds = 0, 0.0


def _reason(error: BaseException) -> str:
    return str(getattr(error, "reason", "") or error or type(error).__name__)


def fetch_text(url: str, policy: Policy | None = None, limit: int = 1 << 16, token: str = "") -> str | None:
    """A small text file; None where the server says 404. Raises FetchError."""
    text = b""
    try:
        for chunk in Download(url, policy=policy, token=token).chunks():
            text += chunk
            if len(text) > limit:
                raise FetchError(f"{url}: more than {limit} bytes.")
    except FetchError as error:
        if error.status == 404:
            return None
        raise
    return text.decode("utf-8", "replace")
