# SPDX-License-Identifier: Apache-2.0
"""Downloads from a server that misbehaves: every case ends whole, or with the numbers."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from nasty import (
    DRIPS,
    POLICY,
    Handler,
    Nasty,
    cut,
    drip,
    length,
    no_ranges,
    redirect,
    serving,
    status,
)

from lemonade_deploy.domain.assets import asset_url
from lemonade_deploy.domain.fetch import Download, FetchError, fetch_text

DATA = random.Random(1).randbytes(700_000)
PATH = "/v1+2/file+1"


@pytest.fixture
def server() -> Iterator[Nasty]:
    with serving() as running:
        running.files[PATH] = DATA
        yield running


def download(server: Nasty, size: int | None = len(DATA)) -> Download:
    return Download(asset_url(server.url, "v1+2", "file+1"), size, POLICY)


def test_a_plus_in_the_tag_is_quoted(server: Nasty) -> None:
    found = download(server)
    assert "v1%2B2/file%2B1" in found.url
    assert b"".join(found.chunks()) == DATA


@pytest.mark.parametrize("known", [True, False])
def test_cut_at_random_bytes_goes_on_by_range(server: Nasty, known: bool) -> None:
    chance = random.Random(7)
    server.moves[PATH] = [cut(chance.randrange(1, 90_000)) for _ in range(12)]
    found = download(server, len(DATA) if known else None)
    assert b"".join(found.chunks()) == DATA
    assert found.retries == 12
    assert [span for _path, span in server.requests][1].startswith("bytes=")  # type: ignore[union-attr]


def test_a_start_offset_asks_for_the_rest_only(server: Nasty) -> None:
    assert b"".join(download(server).chunks(699_000)) == DATA[699_000:]
    assert server.requests == [(PATH, "bytes=699000-")]


def test_a_server_without_ranges_is_read_from_the_start_again(server: Nasty) -> None:
    server.moves[PATH] = [cut(1000), no_ranges]
    assert b"".join(download(server).chunks()) == DATA


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_a_passing_refusal_is_waited_for(server: Nasty, code: int) -> None:
    server.moves[PATH] = [status(code), status(code)]
    assert b"".join(download(server).chunks()) == DATA


def test_retry_after_is_obeyed(server: Nasty) -> None:
    server.moves[PATH] = [status(429, Retry_After="7")]
    found, waits = download(server), []
    found._sleep = waits.append  # type: ignore[method-assign]
    assert b"".join(found.chunks()) == DATA
    assert waits == [7.0]


@pytest.mark.parametrize(
    "value", ["²", "9" * 5000, "-5", "Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 0001 00:00:00 +2359"]
)
def test_a_retry_after_that_says_nothing_is_passed_over(server: Nasty, value: str) -> None:
    server.moves[PATH] = [status(429, Retry_After=value)]
    found = download(server)
    found._sleep = lambda _seconds: None  # type: ignore[method-assign]
    assert b"".join(found.chunks()) == DATA


@pytest.mark.parametrize("value", ["²", "9" * 5000, "-1"])
@pytest.mark.parametrize("name", ["Content-Length", "Content-Range"])
def test_a_length_that_is_no_number_is_no_length(server: Nasty, name: str, value: str) -> None:
    def move(handler: Handler, body: bytes, start: int) -> None:
        handler.send_response(206 if name == "Content-Range" else 200)
        handler.send_header(name, f"bytes {start}-{value}/{value}" if name == "Content-Range" else value)
        handler.end_headers()
        handler.wfile.write(body[start:])
        handler.close_connection = True

    server.moves[PATH] = [move]
    assert b"".join(download(server).chunks()) == DATA


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_final_refusal_is_said_at_once(server: Nasty, code: int) -> None:
    server.moves[PATH] = [status(code)] * 2
    with pytest.raises(FetchError, match=f"HTTP {code}"):
        list(download(server).chunks())
    assert len(server.requests) == 1


def test_attempts_end(server: Nasty) -> None:
    server.moves[PATH] = [status(503)] * 20
    with pytest.raises(FetchError, match=r"HTTP 503.*6 attempts"):
        list(download(server).chunks())
    assert len(server.requests) == 6


def test_a_file_of_another_size_is_refused_with_both_numbers(server: Nasty) -> None:
    with pytest.raises(FetchError, match="expected 699999 bytes, the server has 700000"):
        list(download(server, 699_999).chunks())


@pytest.mark.parametrize("claim", [len(DATA) + 5, len(DATA) - 5, 10])
def test_a_wrong_content_length_once_does_no_harm(server: Nasty, claim: int) -> None:
    server.moves[PATH] = [length(claim)]
    assert b"".join(download(server).chunks()) == DATA


def test_416_ends_with_a_message(server: Nasty) -> None:
    server.moves[PATH] = [cut(1000), status(416), status(416)]
    with pytest.raises(FetchError, match="no bytes after 1000"):
        list(download(server).chunks())


def test_a_redirect_to_another_host_is_followed_with_its_range(server: Nasty) -> None:
    with serving() as other:
        other.files["/elsewhere"] = DATA
        server.moves[PATH] = [redirect(f"{other.url}/elsewhere")]
        assert b"".join(download(server).chunks(5)) == DATA[5:]
        assert other.requests == [("/elsewhere", "bytes=5-")]


def test_a_redirect_to_a_file_is_refused(server: Nasty) -> None:
    server.moves[PATH] = [redirect("file:///etc/passwd")] * 9
    with pytest.raises(FetchError):
        list(download(server).chunks())


def test_a_slow_drip_is_given_up_and_tried_again(server: Nasty) -> None:
    server.moves[PATH] = [drip]
    found = download(server)
    assert b"".join(found.chunks()) == DATA
    assert found.retries == 1
    (_path, again) = server.requests[-1]
    assert int((again or "bytes=0-").removeprefix("bytes=").rstrip("-")) < DRIPS  # not read to its end


def own_certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that nobody but its file vouches for, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(1))
        .not_valid_after(now + datetime.timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "certificate.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(*form))
    return path


def test_a_private_authority_is_trusted_by_ssl_cert_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = own_certificate(tmp_path)
    with serving(certificate) as server:
        server.files["/f"] = DATA
        url = server.url.replace("http:", "https:") + "/f"
        with pytest.raises(FetchError, match="CERTIFICATE_VERIFY_FAILED"):
            list(Download(url, len(DATA), POLICY).chunks())
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert b"".join(Download(url, len(DATA), POLICY).chunks()) == DATA


def test_nobody_there() -> None:
    with pytest.raises(FetchError, match="refused"):
        list(Download("http://127.0.0.1:9/x", 5, POLICY).chunks())


def test_only_http_is_fetched() -> None:
    with pytest.raises(FetchError, match="only http"):
        list(Download("file:///etc/passwd", 5, POLICY).chunks())


def test_a_small_text(server: Nasty) -> None:
    server.files["/t"] = b"2\n"
    assert fetch_text(f"{server.url}/t", POLICY) == "2\n"
    assert fetch_text(f"{server.url}/none", POLICY) is None
    with pytest.raises(FetchError, match="more than"):
        fetch_text(f"{server.url}{PATH.replace('+', '%2B')}", POLICY)


def test_exists(server: Nasty) -> None:
    server.moves[PATH] = [status(503)]
    assert download(server).exists()
    assert not Download(f"{server.url}/none", policy=POLICY).exists()
    server.moves[PATH] = [status(403)]
    with pytest.raises(FetchError, match="403"):
        download(server).exists()
