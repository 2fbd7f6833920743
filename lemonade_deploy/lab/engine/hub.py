# SPDX-License-Identifier: Apache-2.0
"""The simulated huggingface.co: which answer a request gets. No sockets here; a web server calls it.

Serves what Lemonade's downloader (``GET /api/models/<repo>``, ``GET /<repo>/resolve/<rev>/<file>``
with ranges) and the huggingface_hub client of vLLM (HEAD with ``X-Repo-Commit`` and ``ETag``,
``/api/models/<repo>/revision|tree/<rev>``) ask for; 404 carries the error code that client expects.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

_API = re.compile(
    r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<rev>[^/]+)(?P<below>/.*)?)?"
)
_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/(?:resolve|raw)/(?P<rev>[^/]+)/(?P<path>.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
# Files of this size and above are kept by content on the real hub (LFS, Xet) and have a sha256.
LARGE = 10 << 20
BRANCH = "main"


@dataclass(frozen=True)
class Response:
    """An answer; the body is *body*, or *length* bytes of *file* from *offset*. HEAD sends none of it."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    file: Path | None = None
    offset: int = 0
    length: int = 0


@dataclass(frozen=True)
class Entry:
    """A file of a repository; ``etag`` is its sha256 when large, else the id Git gives it."""

    path: str
    size: int
    etag: str
    large: bool


@dataclass(frozen=True)
class Repository:
    """One repository's files at its only commit."""

    name: str
    commit: str
    entries: tuple[Entry, ...]


def repository(store: Path, name: str) -> Repository | None:
    """The repository *name* (``org/repo``) of a store, or None."""
    folder = store / name
    if ".." in Path(name).parts or not folder.is_dir():
        return None
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    stamps = tuple(
        (str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files
    )
    return _read(folder, name, stamps)


@lru_cache(maxsize=64)
def _read(folder: Path, name: str, stamps: tuple[tuple[str, int, int], ...]) -> Repository:
    entries = tuple(_entry(folder, path, size) for path, size, _ in stamps)
    commit = hashlib.sha1("".join(f"{e.path} {e.etag}\n" for e in entries).encode(), usedforsecurity=False)
    return Repository(name, commit.hexdigest(), entries)


def _entry(folder: Path, path: str, size: int) -> Entry:
    large = size >= LARGE or path.endswith((".safetensors", ".gguf"))
    digest = hashlib.sha256() if large else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with (folder / path).open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return Entry(path, size, digest.hexdigest(), large)


def hub_response(method: str, target: str, headers: Mapping[str, str], store: Path) -> Response:
    """The answer to *method* on *target* (path with query); header names of *headers* in any case."""
    if method not in ("GET", "HEAD"):
        return _error(405, "MethodNotAllowed", f"{method} is not served by the lab's hub")
    path = unquote(urlsplit(target).path)
    if found := _API.fullmatch(path):
        return _api(store, found)
    if found := _FILE.fullmatch(path):
        return _file(store, found, {name.lower(): value for name, value in headers.items()})
    return _error(404, "NotFound", f"{path} is not served by the lab's hub")


def _error(status: int, code: str, message: str) -> Response:
    body = json.dumps({"error": message}).encode()
    kind = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    return Response(
        status, {**kind, "X-Error-Code": code, "X-Error-Message": message}, body, length=len(body)
    )


def _missing(name: str) -> Response:
    return _error(404, "RepoNotFound", f"Repository not found: {name}")


def _api(store: Path, asked: re.Match[str]) -> Response:
    found = repository(store, asked["repo"])
    if found is None:
        return _missing(asked["repo"])
    if asked["rev"] not in (None, BRANCH, found.commit):
        return _error(404, "RevisionNotFound", f"Invalid rev id: {asked['rev']}")
    content: object = _tree(found) if asked["what"] == "tree" else _info(found)
    body = json.dumps(content).encode()
    kind = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    return Response(200, kind, body, length=len(body))


def _info(found: Repository) -> dict[str, object]:
    return {
        "_id": found.commit[:24],
        "id": found.name,
        "modelId": found.name,
        "author": found.name.split("/")[0],
        "sha": found.commit,
        "private": False,
        "gated": False,
        "disabled": False,
        "tags": ["text-generation"],
        "pipeline_tag": "text-generation",
        "library_name": "transformers",
        "downloads": 0,
        "likes": 0,
        "siblings": [
            {
                "rfilename": entry.path,
                "size": entry.size,
                "blobId": entry.etag[:40],
                **({"lfs": _lfs(entry)} if entry.large else {}),
            }
            for entry in found.entries
        ],
    }


def _lfs(entry: Entry) -> dict[str, object]:
    return {"sha256": entry.etag, "oid": entry.etag, "size": entry.size, "pointerSize": 134}


def _tree(found: Repository) -> list[dict[str, object]]:
    return [
        {
            "type": "file",
            "path": entry.path,
            "size": entry.size,
            "oid": entry.etag[:40],
            **({"lfs": _lfs(entry)} if entry.large else {}),
        }
        for entry in found.entries
    ]


def _file(store: Path, asked: re.Match[str], headers: Mapping[str, str]) -> Response:
    found = repository(store, asked["repo"])
    if found is None:
        return _missing(asked["repo"])
    if asked["rev"] not in (BRANCH, found.commit):
        return _error(404, "RevisionNotFound", f"Invalid rev id: {asked['rev']}")
    entry = next((entry for entry in found.entries if entry.path == asked["path"]), None)
    if entry is None:
        return _error(404, "EntryNotFound", "Entry not found")
    answer = {
        "Content-Type": "application/octet-stream",
        "Accept-Ranges": "bytes",
        "ETag": f'"{entry.etag}"',
        "X-Repo-Commit": found.commit,
    }
    if entry.large:
        answer |= {"X-Linked-Etag": f'"{entry.etag}"', "X-Linked-Size": str(entry.size)}
    return _ranged(entry.size, store / found.name / entry.path, answer, headers.get("range", ""))


def _ranged(size: int, file: Path, answer: dict[str, str], wanted: str) -> Response:
    part = _RANGE.fullmatch(wanted)
    if part is None:
        return Response(200, {**answer, "Content-Length": str(size)}, file=file, length=size)
    first, last = int(part[1]), min(int(part[2] or size - 1), size - 1)
    if first > last:
        return Response(416, {**answer, "Content-Range": f"bytes */{size}", "Content-Length": "0"})
    answer |= {"Content-Range": f"bytes {first}-{last}/{size}", "Content-Length": str(last - first + 1)}
    return Response(206, answer, file=file, offset=first, length=last - first + 1)
