# SPDX-License-Identifier: Apache-2.0
"""Whatever listens at an address, a module ends with words and not with a traceback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from lemonade_deploy.domain import lemonade_source, lemond_models, vllm_service
from lemonade_deploy.domain.fetch import FetchError, fetch_text
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.lemond_api import Lemond, LemondUnreachable
from lemonade_deploy.domain.refusal import Refused

GARBAGE = b"\x00\x01 SSH-2.0-OpenSSH_9.6\r\n\r\n"
CUT = b'HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{"status"'
CUT_ERROR = b'HTTP/1.1 500 Oops\r\nContent-Length: 400\r\n\r\n{"error"'


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """The address of something that says *answer* to whoever connects, once, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def one() -> None:
            with listener.accept()[0] as caller:
                caller.recv(65536)
                caller.sendall(answer)

        threading.Thread(target=one, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_error_whose_words_break_off_is_an_error() -> None:
    with saying(CUT_ERROR) as address:
        answer = Lemond(address).get("/v1/health")
    assert (answer.status, answer.ok, answer.error) == (500, False, "HTTP 500")
    with saying(CUT_ERROR) as address:
        assert list(Lemond(address).events("/v1/install", {}, 5)) == [("", {"error": "HTTP 500: no words"})]


@pytest.mark.parametrize("said", [GARBAGE, CUT])
def test_what_is_no_answer_is_nobody(said: bytes) -> None:
    with saying(said) as address, pytest.raises(LemondUnreachable):
        Lemond(address).get("/v1/health")


def test_what_speaks_no_http_is_no_healthy_vllm() -> None:
    with saying(GARBAGE) as address:
        assert not vllm_service.healthy(address)


@pytest.mark.parametrize("said", [GARBAGE, CUT])
def test_a_download_that_breaks_off_is_refused(said: bytes) -> None:
    with saying(said) as address, pytest.raises(Refused, match="Cannot fetch"):
        lemonade_source.download(address, judged=True)


@pytest.mark.parametrize("url", ["http://me:s3cret@127.0.0.1:1/x", "http://me:s3c/ret@127.0.0.1:1/x"])
def test_a_password_in_an_address_is_not_quoted(url: str) -> None:
    with pytest.raises(FetchError, match="without a login") as refusal:
        fetch_text(url)
    assert "s3c" not in str(refusal.value)
    with pytest.raises(Refused, match="without a login") as deb:
        lemonade_source.download(url, judged=True)
    assert "s3c" not in str(deb.value)


@pytest.mark.parametrize("page", [b"<html>Log in first</html>", b"[]"])
def test_a_page_in_launchpads_place_names_no_key(page: bytes) -> None:
    with pytest.raises(Refused, match="names no signing key"):
        lemonade_source.launchpad_fingerprint(lemonade_source.Desired(), lambda _url: page)


@contextmanager
def loading(reply: bytes, patience: float) -> Iterator[Lemond]:
    """A lemond with no model, which takes *patience* s over a load, says *reply* and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):  # the listener is closed at the end
                while True:
                    with listener.accept()[0] as caller:
                        if caller.recv(65536).startswith(b"GET"):
                            caller.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")
                            continue
                        over.wait(patience)
                        caller.sendall(reply)

        over = threading.Event()
        threading.Thread(target=serve, daemon=True).start()
        yield Lemond(f"http://127.0.0.1:{listener.getsockname()[1]}")
        over.set()


@pytest.mark.parametrize(
    ("patience", "limit", "found", "remedy"),
    [
        (0, 60, "lemond went away while it loaded user.Small", "a lack of memory"),
        (60, 0.5, "user.Small was not loaded after", "raise models_load_timeout"),
    ],
)
def test_who_died_over_a_load_needs_no_more_time(
    patience: float, limit: float, found: str, remedy: str
) -> None:
    host = Host("/", lambda argv, *_: Completed(tuple(argv), 0, "", ""))
    wanted = lemond_models.wanted_from({"name": "user.Small", "checkpoint": "org/small"})
    with loading(b"", patience) as lemond, pytest.raises(Refused) as caught:
        lemond_models.load(host, lemond, wanted, limit, "")
    assert found in caught.value.found
    assert remedy in caught.value.remedy
