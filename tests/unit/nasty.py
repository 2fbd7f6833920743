# SPDX-License-Identifier: Apache-2.0
"""A release server that misbehaves as told, on loopback, and small bundles to serve from it."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import ssl
import tarfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lemonade_deploy.domain.assets import part_names, partcount_name
from lemonade_deploy.domain.fetch import Policy
from lemonade_deploy.domain.gunzip import inflate
from lemonade_deploy.domain.lock import Asset, Release, TreeInfo
from lemonade_deploy.domain.unpack import Nowhere, unpack

TAG = "vllm0.25.2.dev0+rocm7.15.0-rocm7.15.0-gfx1151"
FAMILY = "gfx1151"
# Quick, but with every stage of the real one.
POLICY = Policy(backoff=0.001, backoff_max=0.002, timeout=5, slow_after=0.4)

Move = Callable[["Handler", bytes, int], None]


class Handler(BaseHTTPRequestHandler):
    """Serves `server.files`; a move that is queued for a path answers one request instead."""

    protocol_version = "HTTP/1.1"
    server: Nasty

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer, well or as the next move says."""
        path = unquote(self.path)
        self.server.requests.append((path, self.headers.get("Range")))
        self.server.tokens.append(self.headers.get("Authorization"))
        moves = self.server.moves[path] or self.server.moves["*"]
        body = self.server.files.get(path)
        span = self.headers.get("Range", "")
        first, _dash, last = span.removeprefix("bytes=").partition("-")
        start = int(first or 0)
        try:
            if moves:
                moves.pop(0)(self, body or b"", start)
            elif body is None:
                status(404)(self, b"", 0)
            elif span == "bytes=0-0":
                first_byte(self, body)
            elif last:
                part(self, body, start, int(last) + 1)
            else:
                answer(self, body, start)
        except ConnectionError:
            self.close_connection = True


class Nasty(ThreadingHTTPServer):
    """`files`: path → bytes; `moves`: path (or "*") → what to do at the next requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.moves: defaultdict[str, list[Move]] = defaultdict(list)
        self.requests: list[tuple[str, str | None]] = []
        self.tokens: list[str | None] = []

    @property
    def url(self) -> str:
        """The address of its root."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_args: Any) -> None:
        """A client that went away is part of the game."""

    def put(self, tag: str, name: str, data: bytes) -> str:
        """Serve an asset; gives its path."""
        path = f"/{tag}/{name}"
        self.files[path] = data
        return path


@contextmanager
def serving(certificate: Path | None = None) -> Iterator[Nasty]:
    """A running server; with a file of certificate and key it speaks TLS."""
    server = Nasty()
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(
    handler: Handler, body: bytes, start: int, claim: int | None = None, end: int | None = None
) -> None:
    """A good answer; ``claim`` is another Content-Length than the true one, ``end`` where it breaks."""
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
    handler.send_header("Content-Length", str(len(body) - start if claim is None else claim))
    handler.end_headers()
    handler.wfile.write(body[start:end])
    handler.close_connection = claim is not None or end is not None


def first_byte(handler: Handler, body: bytes) -> None:
    """The good answer to who asks for one byte, to learn whether ranges are served."""
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes 0-0/{len(body)}")
    handler.send_header("Content-Length", "1")
    handler.end_headers()
    handler.wfile.write(body[:1])


def part(handler: Handler, body: bytes, start: int, end: int) -> None:
    """The good answer to who asks for a part in the middle."""
    end = min(end, len(body))
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body)}")
    handler.send_header("Content-Length", str(end - start))
    handler.end_headers()
    handler.wfile.write(body[start:end])


def status(code: int, **headers: str) -> Move:
    """Answer with a status and no content."""

    def move(handler: Handler, _body: bytes, _start: int) -> None:
        handler.send_response(code)
        for key, value in headers.items():
            handler.send_header(key.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return move


def cut(after: int) -> Move:
    """Send so many bytes of what was asked, then close."""

    def move(handler: Handler, body: bytes, start: int) -> None:
        answer(handler, body, start, end=start + after)

    return move


def length(claim: int) -> Move:
    """Send it all, but with this Content-Length."""
    return lambda handler, body, start: answer(handler, body, start, claim)


def no_ranges(handler: Handler, body: bytes, _start: int) -> None:
    """Always the whole file."""
    answer(handler, body, 0)


def spoiled(handler: Handler, body: bytes, start: int) -> None:
    """One byte in the middle is another one."""
    middle = len(body) // 2
    answer(handler, body[:middle] + bytes([body[middle] ^ 255]) + body[middle + 1 :], start)


def redirect(url: str) -> Move:
    """Go elsewhere."""
    return status(302, Location=url)


DRIPS = 400  # bytes


def drip(handler: Handler, body: bytes, start: int) -> None:
    """A byte now and then; no single wait is long enough for a time limit."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body) - start))
    handler.end_headers()
    for byte in body[start : start + DRIPS]:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(0.01)
    handler.close_connection = True


def tar_gz(members: list[tuple[tarfile.TarInfo, bytes]], **options: Any) -> bytes:
    """An archive of exactly these members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **options) as tar:
        for info, data in members:
            info.size = len(data) if info.isreg() else info.size
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue(), 1)


def info(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, target: str = "") -> tarfile.TarInfo:
    """A tar header."""
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.linkname, made.mtime = kind, mode, target, 1_700_000_000
    return made


def bundle_members(salt: int = 0, blob: int = 400_000) -> list[tuple[tarfile.TarInfo, bytes]]:
    """A tree in AMD's layout with every vital part, and one file that does not compress."""
    site = "./lib/python3.14/site-packages"
    script = b"#!/bin/sh\nexit 0\n"
    return [
        (info("./", tarfile.DIRTYPE, 0o755), b""),
        (info("./bin", tarfile.DIRTYPE, 0o755), b""),
        (info("./bin/vllm-server", mode=0o755), script),
        (info("./bin/python3.14", mode=0o755), script),
        (info("./bin/python3", tarfile.SYMTYPE, target="python3.14"), b""),
        (info(f"{site}/vllm/_C.abi3.so", mode=0o775), b"so"),
        (info(f"{site}/vllm/_rocm_C.abi3.so", mode=0o755), b"so"),
        (info(f"{site}/torch/.kpack/torch_gfx1151.kpack"), b"code" * 50),
        (info(f"{site}/_rocm_sdk_libraries/.kpack/blas_gfx1151.kpack"), b"code" * 50),
        (info(f"{site}/_rocm_sdk_core/lib/llvm/bin/clang", mode=0o755), script),
        (info(f"{site}/blob"), random.Random(salt).randbytes(blob)),
        (info(f"{site}/same", tarfile.LNKTYPE, target=f"{site}/blob"), b""),
    ]


def publish(
    server: Nasty, archive: bytes, parts: int = 3, tag: str = TAG, family: str = FAMILY
) -> tuple[Release, list[str]]:
    """Serve an archive in parts, as upstream does; gives its lock entry and the parts' paths."""
    names = part_names(tag, parts)
    step = -(-len(archive) // parts)
    pieces = [archive[start : start + step] for start in range(0, len(archive), step)]
    server.put(tag, partcount_name(tag), f"{parts}\n".encode())
    paths = [server.put(tag, name, piece) for name, piece in zip(names, pieces, strict=True)]
    assets = tuple(
        Asset(name, len(piece), hashlib.sha256(piece).hexdigest())
        for name, piece in zip(names, pieces, strict=True)
    )
    manifest = unpack(inflate([archive]), Nowhere())
    tree = TreeInfo(manifest.digest(), manifest.size, manifest.files)
    return Release(tag, family, assets, tree, "2026-01-01T00:00:00Z", server.url), paths
