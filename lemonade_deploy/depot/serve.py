# SPDX-License-Identifier: Apache-2.0
"""Serve a depot on the LAN: GET, HEAD and ranges of finished files, TLS if wanted.

Releases are behind a token. Packages are not: what fetches them (a kernel's mirror, lemond's .deb)
sends none, and hosts judge them by signature or digest.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import ssl
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from lemonade_deploy.depot.store import INCOMING, PARTIAL, PROGRESS, SHELVES, TOKEN
from lemonade_deploy.domain.fetch import FetchError

PORT = 13380
IDLE = 60  # seconds after which a silent connection is closed
_NAME = re.compile(r"[\w.+~-]*[\w+~-]")  # no `.`, no `..`, no separator
_RANGE = re.compile(r"bytes=([0-9]{1,19})-([0-9]{0,19})")  # what differs is no range, and gets all
_TOKEN = re.compile(r"[!-~]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def token_of(folder: Path, said: Callable[[str], None] = lambda _line: None) -> str:
    """The depot's token; made at the first call, readable by its owner only.

    One that is empty is made anew, one that others could read is closed to them: *said* tells it.
    Raises FetchError (it is no token), OSError.
    """
    path = folder / TOKEN
    folder.mkdir(parents=True, exist_ok=True)
    token = _kept(path)
    if token is None:
        _make(path)
        token = _kept(path)
    if not token:
        raise FetchError(f"{path} is empty or vanished.", "Remove it; `depot serve` makes another.")
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
        said(f"{path} could be read by other users; it no longer can. Make another token if they should not.")
    return token


def _kept(path: Path) -> str | None:
    """The token in a file; None where there is none yet (an empty one is what a full disk left)."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    token = raw.decode("ascii", "replace").strip()
    if token and not _TOKEN.fullmatch(token):
        raise FetchError(
            f"{path} holds no token: one line of printable ASCII without spaces is expected.",
            "Remove it; `depot serve` makes another.",
        )
    return token or None


def _make(path: Path) -> None:
    """Write a token; the file gets its name once it is whole."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{TOKEN}-")  # 0600
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(secrets.token_urlsafe(32) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        if _kept(path) is None:  # else another `depot serve` was faster
            Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def server(
    folder: Path,
    address: tuple[str, int],
    token: str,
    tls: ssl.SSLContext | None = None,
    said: Callable[[str], None] = lambda _line: None,
) -> ThreadingHTTPServer:
    """A server that is bound; call serve_forever(). *tls*: see module ``tls``. Raises OSError."""
    if not token:
        raise ValueError("a depot without a token would be open to all")
    made = _Server(address, partial(Handler, folder=folder, token=token, said=said))
    made.said = said
    if tls:
        # The handshake is done in the connection's own thread, not while others wait to be accepted.
        made.socket = tls.wrap_socket(made.socket, server_side=True, do_handshake_on_connect=False)
    return made


class _Server(ThreadingHTTPServer):
    """One whose connections may end at any byte: a host that was killed, one that speaks no TLS."""

    daemon_threads = True
    said: Callable[[str], None]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A line, where the connection is what broke."""
        error = sys.exception()
        if not isinstance(error, OSError):  # ours: to be seen whole
            super().handle_error(request, client_address)
            return
        why = getattr(error, "reason", None) or error.strerror or error
        self.said(f"{client_address[0]} the connection broke ({why})")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "lemonade-depot"
    sys_version = ""
    timeout = IDLE

    def __init__(self, *args: Any, folder: Path, token: str, said: Callable[[str], None]) -> None:
        self._folder, self._token, self._said = folder, token, said
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer GET."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answer HEAD."""
        self._answer(body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """One line an answer; requests hold no secrets, the token is in a header."""
        line = _CONTROL.sub("?", format % args)  # whoever is on the LAN writes into this terminal
        self._said(f"{self.client_address[0]} {line}")

    def _answer(self, body: bool) -> None:
        try:
            parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        except ValueError:  # an absolute address that is none, such as `http://[`
            self._refuse(400)
            return
        given = self.headers.get("Authorization", "")
        if parts[0] not in SHELVES and not hmac.compare_digest(
            given.encode(), f"Bearer {self._token}".encode()
        ):
            self._refuse(401)
            return
        try:
            path = self._file(parts)
            page = self._page(path, parts) if path and path.is_dir() else None
            stream = path.open("rb") if path and page is None else None
        except (OSError, RuntimeError):  # a name too long for a file, one that is gone, links in a ring
            path = page = stream = None
        if page is not None:
            self._send_page(page, body)
        elif stream is None:
            self._refuse(404)
        else:
            self._send(stream, body)

    def _send(self, stream: Any, body: bool) -> None:
        with stream:
            size = os.fstat(stream.fileno()).st_size
            found = _RANGE.fullmatch(self.headers.get("Range", ""))
            start = int(found[1]) if found else 0
            end = min(int(found[2]) + 1, size) if found and found[2] else size
            if found and (start >= size or end <= start):
                self._refuse(416)
                return
            self.send_response(206 if found else 200)
            if found:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            if body:
                stream.seek(start)
                self._copy(stream, end - start)

    def _copy(self, stream: Any, left: int) -> None:
        if isinstance(self.connection, ssl.SSLSocket):
            while left and (data := stream.read(min(left, 1 << 20))):
                self.wfile.write(data)
                left -= len(data)
            return
        self.wfile.flush()
        self.connection.sendfile(stream, stream.tell(), left) if left else None

    def _file(self, parts: list[str]) -> Path | None:
        """What is asked for: TAG/NAME or something on a shelf, finished, and really below the folder."""
        shelf = parts[0] in SHELVES
        if parts[0] == INCOMING or parts[0].startswith("."):
            return None
        if not (len(parts) == 2 or (shelf and len(parts) <= 4)) or not all(map(_NAME.fullmatch, parts)):
            return None
        path, real = self._folder.joinpath(*parts), self._folder.resolve().joinpath(*parts)
        if path.name.endswith((PARTIAL, PROGRESS)) or path.resolve() != real:
            return None
        if shelf and path.is_dir():
            page = path / "index.html"
            return page if page.is_file() else path
        return path if path.is_file() else None

    def _page(self, folder: Path, parts: list[str]) -> bytes:
        """A list of links, as a mirror of kernel.ubuntu.com has it: those that are answered."""
        entries = [entry for entry in sorted(folder.iterdir()) if self._file([*parts, entry.name])]
        names = [entry.name + ("/" if entry.is_dir() else "") for entry in entries]
        rows = [f'<a href="{quote(name)}">{name}</a>' for name in names]
        return "\n".join(["<!DOCTYPE html>", *rows, ""]).encode()

    def _send_page(self, text: bytes, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if body:
            self.wfile.write(text)

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Length", "0")
        self.end_headers()
