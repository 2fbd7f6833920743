# SPDX-License-Identifier: Apache-2.0
"""The lab's web server over real sockets on loopback."""

from __future__ import annotations

import http.client
import io
import json
import queue
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lemonade_deploy.lab import catalog
from lemonade_deploy.lab.services import faults, pki
from lemonade_deploy.lab.services.answers import BUILT_IN, Answer, Request
from lemonade_deploy.lab.services.server import AccessLog, Handler, Server, tls_context

BODY = bytes(range(256)) * 40


class Lines(io.StringIO):
    """A log whose lines can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.Queue[str] = queue.Queue()

    def write(self, text: str) -> int:
        self.lines.put(text)
        return len(text)


class Web:
    """A running server and its log."""

    def __init__(self, www: Path, tls: ssl.SSLContext | None = None) -> None:
        self.www, self.log = www, Lines()
        hooks = {
            **BUILT_IN,
            "hooked.example": lambda request, site: Answer(200, b"hook", "text/x", {"X-A": "b"}),
        }
        handler = partial(Handler, www=www, hooks=hooks, faults=faults.Faults(www), log=AccessLog(self.log))
        self.server = Server(("127.0.0.1", 0), handler, tls)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        self.port = self.server.server_address[1]

    def ask(
        self, path: str, host: str = "a.example", method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers={"Host": host, **names})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    www = tmp_path / "www"
    for host in ("a.example", "hooked.example", "keyserver.ubuntu.com", "api.launchpad.net"):
        (www / host).mkdir(parents=True)
    (www / "a.example" / "pool").mkdir()
    (www / "a.example" / "pool" / "x+y_1%3a2.deb").write_bytes(BODY)
    (tmp_path / "secret").write_text("secret")
    running = Web(www)
    yield running
    running.server.shutdown()
    running.server.server_close()


DEB = "/pool/x%2By_1%253a2.deb"


def test_whole_file(web: Web) -> None:
    status, headers, body = web.ask(DEB)
    assert (status, body) == (200, BODY)
    assert headers["content-length"] == str(len(BODY))
    assert headers["accept-ranges"] == "bytes"
    line = json.loads(web.log.lines.get(timeout=5))  # written after the answer went out
    assert (line["host"], line["status"], line["bytes"]) == ("a.example", 200, len(BODY))


def test_head_has_the_length_and_no_body(web: Web) -> None:
    status, headers, body = web.ask(DEB, method="HEAD")
    assert (status, headers["content-length"], body) == (200, str(len(BODY)), b"")


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [("bytes=0-0", 0, 1), ("bytes=10-19", 10, 20), ("bytes=100-", 100, None), ("bytes=-7", -7, None)],
)
def test_ranges(web: Web, text: str, start: int, end: int | None) -> None:
    status, headers, body = web.ask(DEB, Range=text)
    assert (status, body) == (206, BODY[start:end])
    assert headers["content-range"].endswith(f"/{len(BODY)}")


@pytest.mark.parametrize("text", [f"bytes={len(BODY)}-", "bytes=5-2", "bytes=-", "bytes=a-b"])
def test_ranges_that_cannot_be_met(web: Web, text: str) -> None:
    status, headers, _ = web.ask(DEB, Range=text)
    assert (status, headers["content-range"]) == (416, f"bytes */{len(BODY)}")


def test_range_of_another_state_gives_the_whole(web: Web) -> None:
    tag = web.ask(DEB)[1]["etag"]
    assert web.ask(DEB, Range="bytes=5-", If_Range=tag)[0] == 206
    assert web.ask(DEB, Range="bytes=5-", If_Range='"other"')[::2] == (200, BODY)


def test_unchanged_files_are_not_sent_again(web: Web) -> None:
    _, headers, _ = web.ask(DEB)
    assert web.ask(DEB, If_None_Match=headers["etag"])[::2] == (304, b"")
    assert web.ask(DEB, If_Modified_Since=headers["last-modified"])[0] == 304
    assert web.ask(DEB, If_Modified_Since="Mon, 01 Jan 2001 00:00:00 GMT")[0] == 200
    assert web.ask(DEB, If_Modified_Since="nonsense")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/%2e%2e/%2e%2e/secret",
        "/pool/../../../secret",
        "//etc/passwd",
        "/pool",
        "/a%00b",
        "/" + "x" * 400,
    ],
)
def test_nothing_outside_is_served(web: Web, path: str) -> None:
    status, headers, body = web.ask(path)
    assert status == 404
    assert headers["content-length"] == str(len(body))
    assert b"secret" not in body


def test_links_out_of_the_served_folders_are_not_followed(web: Web, tmp_path: Path) -> None:
    (web.www / "a.example" / "out").symlink_to(tmp_path / "secret")
    (web.www / "hooked.example" / "in").symlink_to(web.www / "a.example" / "pool")
    (web.www / "a.example" / "in").symlink_to("../a.example/pool")
    assert web.ask("/out")[0] == 404
    assert web.ask("/in/x%2By_1%253a2.deb")[0] == 200


@pytest.mark.parametrize("host", ["other.example", "..", "../secret", "", "a.example/../.."])
def test_unknown_hosts_are_refused(web: Web, host: str) -> None:
    assert web.ask(DEB, host=host)[0] == 404


def test_port_in_the_host_header_and_case_do_not_matter(web: Web) -> None:
    assert web.ask(DEB, host="A.Example:80")[0] == 200


def test_hooks_answer_first(web: Web) -> None:
    status, headers, body = web.ask("/any", host="hooked.example")
    assert (status, headers["x-a"], headers["content-type"], body) == (200, "b", "text/x", b"hook")


def test_keyserver_gives_a_key_by_fingerprint(web: Web) -> None:
    shelf = web.www / "keyserver.ubuntu.com" / "keys"
    shelf.mkdir()
    (shelf / "AAAABBBBCCCCDDDD.asc").write_text("the key")
    ask = partial(web.ask, host="keyserver.ubuntu.com")
    assert ask("/pks/lookup?op=get&search=0xbbbbCCCCDDDD")[::2] == (200, b"the key")
    assert ask("/pks/lookup?op=get&search=0xDDDD")[0] == 404  # too short to name one key
    assert ask("/pks/lookup?op=get&search=0x11112222")[0] == 404
    assert ask("/pks/lookup?op=index&search=0xbbbbCCCCDDDD")[0] == 404


def test_launchpad_answers_are_json(web: Web) -> None:
    place = web.www / "api.launchpad.net/devel/~o/+archive/ubuntu/stable"
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    answer = web.ask("/devel/~o/+archive/ubuntu/stable", host="api.launchpad.net")
    assert (answer[0], answer[1]["content-type"]) == (200, "application/json")


def test_connection_is_kept(web: Web) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=5)
    for _ in range(2):
        connection.request("GET", DEB, headers={"Host": "a.example"})
        assert connection.getresponse().read() == BODY
        assert connection.sock is not None
    connection.close()


def test_planned_faults(web: Web) -> None:
    faults.write(web.www, [faults.Fault("a.example", "*.deb", times=1, cut_after=100)])
    with pytest.raises(http.client.IncompleteRead) as broken:
        web.ask(DEB)
    assert len(broken.value.partial) == 100
    assert web.ask(DEB, Range="bytes=100-")[::2] == (206, BODY[100:])
    faults.write(web.www, [faults.Fault("a.example", "/pool/*", status=503)])
    assert web.ask(DEB)[0] == web.ask(DEB)[0] == 503
    faults.write(web.www, [])
    assert web.ask(DEB)[0] == 200


def test_faults_file_is_not_served(web: Web) -> None:
    faults.write(web.www, [])
    assert web.ask("/../.faults.json")[0] == 404


def test_tls_is_trusted_by_the_labs_authority_alone(tmp_path: Path) -> None:
    made = pki.ensure_pki(tmp_path / "pki")
    www = tmp_path / "www"
    (www / "github.com").mkdir(parents=True)
    (www / "github.com" / "f").write_bytes(BODY)
    web = Web(www, tls_context(made.certificate, made.key))
    try:
        trusting = ssl.create_default_context(cafile=str(made.ca))
        for name in ("github.com", "huggingface.co", "repo.radeon.com"):
            with trusting.wrap_socket(_connect(web.port), server_hostname=name) as secured:
                secured.sendall(b"GET /f HTTP/1.0\r\nHost: github.com\r\n\r\n")
                with secured.makefile("rb") as stream:
                    assert stream.read().endswith(BODY)
        with pytest.raises(ssl.SSLCertVerificationError):
            trusting.wrap_socket(_connect(web.port), server_hostname="elsewhere.example")
        with pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(_connect(web.port), server_hostname="github.com")
    finally:
        web.server.shutdown()
        web.server.server_close()


def _connect(port: int) -> object:
    import socket

    return socket.create_connection(("127.0.0.1", port), timeout=5)


def test_certificates_are_kept_until_a_name_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pki.ensure_pki(tmp_path).ca.read_bytes()
    assert pki.ensure_pki(tmp_path).ca.read_bytes() == first
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
    monkeypatch.setattr(catalog, "HOSTNAMES", (*catalog.HOSTNAMES, "new.example"))
    assert pki.ensure_pki(tmp_path).ca.read_bytes() != first


def test_request_parsing() -> None:
    request = Request.parse("GET", "GitHub.com:443", "/a%20b?x=1&x=2")
    assert (request.host, request.path, request.query) == ("github.com", "/a b", {"x": ["1", "2"]})
