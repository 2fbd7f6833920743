# SPDX-License-Identifier: Apache-2.0
"""The lab's web server: HTTP/1.1 on port 80 and HTTPS on 443, one folder a host name.

``python -m lemonade_deploy.lab.services.server --www DIR --address A --cert PEM --key PEM --log FILE``.
It knows Range, HEAD, ETag and Last-Modified, says Content-Length on every answer (libcurl and apt
want it), and writes one JSON line an answer.
"""

from __future__ import annotations

import argparse
import email.utils
import importlib
import json
import signal
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from .answers import BUILT_IN, Answer, Hook, Request, answer
from .faults import Fault, Faults

IDLE_SECONDS = 60  # a kept connection that says nothing for so long is closed
CHUNK = 1 << 18


class AccessLog:
    """JSON lines, written by several threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = stream, threading.Lock()

    def write(self, **fields: object) -> None:
        """One line; it is flushed at once, so that tests see it."""
        with self._lock:
            self._stream.write(json.dumps(fields) + "\n")
            self._stream.flush()


class Handler(BaseHTTPRequestHandler):
    """One connection; made by functools.partial with the arguments below."""

    protocol_version = "HTTP/1.1"
    server_version = "lemonade-lab"
    timeout = IDLE_SECONDS

    def __init__(
        self, *args: Any, www: Path, hooks: Mapping[str, Hook], faults: Faults, log: AccessLog
    ) -> None:
        self._www, self._hooks, self._faults, self._log = www, hooks, faults, log
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer GET."""
        self._serve()

    def do_HEAD(self) -> None:
        """Answer HEAD: the same header, no body."""
        self._serve()

    def version_string(self) -> str:
        """The Server header."""
        return self.server_version

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: :class:`AccessLog` says it better."""

    def _serve(self) -> None:
        begun = time.monotonic()
        request = Request.parse(
            self.command, self.headers.get("Host", ""), self.path, self.headers.get("Authorization", "")
        )
        fault = self._faults.take(request.host, request.path)
        if fault is not None and fault.status is not None:
            given = Answer(fault.status, b"a planned fault of the lab\n")
        else:
            given = answer(request, self._www, self._hooks)
        status, sent = given.status, 0
        try:
            if isinstance(given.body, Path) and given.status == 200:
                with given.body.open("rb") as stream:
                    status, sent = self._send_file(given, given.body, stream, fault)
            else:
                body = given.body if isinstance(given.body, bytes) else given.body.read_bytes()
                self._head(status, given, {"Content-Length": str(len(body))})
                sent = self._body(body)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        self._log.write(
            time=email.utils.formatdate(usegmt=True),
            client=self.client_address[0],
            host=request.host,
            method=request.method,
            path=request.path,
            range=self.headers.get("Range"),
            status=status,
            bytes=sent,
            seconds=round(time.monotonic() - begun, 4),
        )

    def _send_file(self, given: Answer, path: Path, stream: BinaryIO, fault: Fault | None) -> tuple[int, int]:
        state = path.stat()
        size, tag = state.st_size, f'"{state.st_mtime_ns:x}-{state.st_size:x}"'
        tag = given.headers.get("ETag", tag)  # a hook may know a better one
        modified = email.utils.formatdate(int(state.st_mtime), usegmt=True)
        caching = {"ETag": tag, "Last-Modified": modified, "Accept-Ranges": "bytes"}
        if self._unchanged(tag, int(state.st_mtime)):
            self._head(304, given, caching)
            return 304, 0
        wanted = self._range(size, tag, modified)
        if wanted is None:
            self._head(416, given, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
            return 416, 0
        start, end = wanted
        status = 200 if (start, end) == (0, size) and "Range" not in self.headers else 206
        if status == 206:
            caching["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._head(status, given, {**caching, "Content-Length": str(end - start)})
        if self.command == "HEAD":
            return status, 0
        stream.seek(start)
        return status, self._copy(stream, end - start, fault)

    def _copy(self, stream: BinaryIO, size: int, fault: Fault | None) -> int:
        """Send *size* bytes as well as *fault* lets us; returns how many went out."""
        limit = size if fault is None or fault.cut_after is None else min(size, fault.cut_after)
        rate = None if fault is None else fault.rate
        step = CHUNK if rate is None else max(1, min(CHUNK, rate // 10))
        sent = 0
        while sent < limit:
            chunk = stream.read(min(step, limit - sent))
            if not chunk:
                break
            self.wfile.write(chunk)
            sent += len(chunk)
            if rate is not None:
                time.sleep(len(chunk) / rate)
        if sent < size:  # the promised length cannot be kept: cut on purpose, or the file shrank
            self.close_connection = True
        return sent

    def _unchanged(self, tag: str, modified: int) -> bool:
        known = self.headers.get("If-None-Match")
        if known is not None:
            return known.strip() == "*" or tag in (item.strip() for item in known.split(","))
        since = self.headers.get("If-Modified-Since")
        if since is None:
            return False
        try:
            return modified <= email.utils.parsedate_to_datetime(since).timestamp()
        except ValueError:
            return False

    def _range(self, size: int, tag: str, modified: str) -> tuple[int, int] | None:
        """The wanted part as (start, end); the whole where none or another state is meant; None = 416."""
        text = self.headers.get("Range")
        condition = self.headers.get("If-Range")
        if not text or not text.startswith("bytes=") or "," in text:
            return 0, size
        if condition is not None and condition not in (tag, modified):
            del self.headers["Range"]
            return 0, size
        first, dash, last = text.removeprefix("bytes=").strip().partition("-")
        if not dash or not (first or last) or not all(part.isdigit() for part in (first, last) if part):
            return None
        if not first:
            start, end = max(0, size - int(last)), size
        else:
            start, end = int(first), min(size, int(last) + 1 if last else size)
        return (start, end) if start < end else None

    def _head(self, status: int, given: Answer, headers: Mapping[str, str]) -> None:
        self.send_response(status, HTTPStatus(status).phrase)
        if status != 304:
            self.send_header("Content-Type", given.content_type)
        for key, value in {**headers, **given.headers}.items():
            self.send_header(key, value)
        self.end_headers()

    def _body(self, body: bytes) -> int:
        if self.command == "HEAD":
            return 0
        self.wfile.write(body)
        return len(body)


class Server(ThreadingHTTPServer):
    """Threads a connection; with a TLS context the handshake happens in the connection's thread."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: Any, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(address, handler)
        self._tls = tls

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Handle one connection, behind TLS where there is a context."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(IDLE_SECONDS)
        with self._tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off or refuses the certificate is no news; anything else is."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError, ssl.SSLError)):
            super().handle_error(request, client_address)


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The context for the HTTPS side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def load_hooks(modules: list[str]) -> dict[str, Hook]:
    """The built-in hooks and those of *modules* (each with a dictionary ``HOOKS``)."""
    hooks = dict(BUILT_IN)
    for name in modules:
        hooks.update(importlib.import_module(name).HOOKS)
    return hooks


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="lab-server", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--www", type=Path, required=True, help="folder with a folder for each host name")
    parser.add_argument("--address", required=True)
    parser.add_argument("--http-port", type=int, default=80)
    parser.add_argument("--https-port", type=int, default=443)
    parser.add_argument("--cert", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--log", type=Path, help="access log (JSON lines); default: standard output")
    parser.add_argument("--hooks", action="append", default=[], metavar="MODULE")
    given = parser.parse_args(argv)
    stream = given.log.open("a", encoding="utf-8") if given.log else sys.stdout
    handler = partial(
        Handler,
        www=given.www,
        hooks=load_hooks(given.hooks),
        faults=Faults(given.www),
        log=AccessLog(stream),
    )
    servers = [
        Server((given.address, given.http_port), handler),
        Server((given.address, given.https_port), handler, tls_context(given.cert, given.key)),
    ]
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"serving {given.www} on {given.address}", file=sys.stderr, flush=True)
    stop.wait()
    for server in servers:
        server.shutdown()
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
