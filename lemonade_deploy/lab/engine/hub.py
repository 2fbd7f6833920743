# SPDX-License-Identifier: Apache-2.0
"""The simulated huggingface.co: which answer a request gets, from a store ``<org>/<repo>/<file>``.

It serves what was seen asked (lemond 2026.39.1, huggingface_hub 2.4.0):

- lemond's pull: ``GET /api/models/<repo>?blobs=true``, then every file by commit; it checks the
  content against ``lfs.sha256`` and ``blobId``; ``resolve/main/config.json`` at each load;
- vLLM: ``/api/models/<repo>``, ``…/revision/main``, ``…/tree/main?recursive=…``, HEAD of the weights
  (``X-Repo-Commit``, ``ETag``, ``X-Linked-*``) and their first 100,000 bytes by range.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..services.answers import OCTETS, TYPES, Answer, Hook, Request

_API = re.compile(
    r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<rev>[^/]+)(?P<below>/.*)?)?"
)
_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/(?:resolve|raw)/(?P<rev>[^/]+)/(?P<path>.+)")
# Files of this size and above are kept by content on the real hub (LFS, Xet) and have a sha256.
LARGE = 10 << 20
BRANCH = "main"
GATED = ".gated"  # in a repository of the store: makes it a gated one, and holds the token that opens it


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
    gate: str = ""


def repository(store: Path, name: str) -> Repository | None:
    """The repository *name* (``org/repo``) of a store, or None."""
    folder = store / name
    if ".." in Path(name).parts or not folder.is_dir():
        return None
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != GATED)
    stamps = tuple(
        (str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files
    )
    gate = (folder / GATED).read_text().strip() if (folder / GATED).exists() else ""
    return _read(folder, name, stamps, gate)


@lru_cache(maxsize=64)
def _read(folder: Path, name: str, stamps: tuple[tuple[str, int, int], ...], gate: str) -> Repository:
    entries = tuple(_entry(folder, path, size) for path, size, _ in stamps)
    commit = hashlib.sha1("".join(f"{e.path} {e.etag}\n" for e in entries).encode(), usedforsecurity=False)
    return Repository(name, commit.hexdigest(), entries, gate)


def _entry(folder: Path, path: str, size: int) -> Entry:
    large = size >= LARGE or path.endswith((".safetensors", ".gguf"))
    digest = hashlib.sha256() if large else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with (folder / path).open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return Entry(path, size, digest.hexdigest(), large)


def hub(request: Request, store: Path) -> Answer:
    """The answer to *request*: a hook of the lab's web server, which itself does ranges and HEAD."""
    if found := _API.fullmatch(request.path):
        return _api(store, found)
    if found := _FILE.fullmatch(request.path):
        return _file(store, found, request.token)
    return _error("NotFound", f"{request.path} is not served by the lab's hub")


HOOKS: Mapping[str, Hook] = {"huggingface.co": hub}


def _json(status: int, content: object, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, json.dumps(content).encode(), TYPES[".json"], headers or {})


def _error(code: str, message: str, status: int = 404) -> Answer:
    """An error with the headers by which huggingface_hub tells them apart."""
    return _json(status, {"error": message}, {"X-Error-Code": code, "X-Error-Message": message})


def _find(store: Path, asked: re.Match[str]) -> Repository | Answer:
    found = repository(store, asked["repo"])
    if found is None:
        return _error("RepoNotFound", f"Repository not found: {asked['repo']}")
    if asked["rev"] not in (None, BRANCH, found.commit):
        return _error("RevisionNotFound", f"Invalid rev id: {asked['rev']}")
    return found


def _api(store: Path, asked: re.Match[str]) -> Answer:
    found = _find(store, asked)
    if isinstance(found, Answer):
        return found
    return _json(200, _tree(found) if asked["what"] == "tree" else _info(found))


def _info(found: Repository) -> dict[str, object]:
    return {
        "_id": found.commit[:24],
        "id": found.name,
        "modelId": found.name,
        "author": found.name.split("/")[0],
        "sha": found.commit,
        "private": False,
        "gated": "manual" if found.gate else False,
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


def _file(store: Path, asked: re.Match[str], token: str) -> Answer:
    found = _find(store, asked)
    if isinstance(found, Answer):
        return found
    if found.gate and token != found.gate:
        # As the real hub: no token, or one whose owner has not accepted the licence.
        return _error("GatedRepo", f"Access to model {found.name} is restricted", 403 if token else 401)
    entry = next((entry for entry in found.entries if entry.path == asked["path"]), None)
    if entry is None:
        return _error("EntryNotFound", "Entry not found")
    headers = {"ETag": f'"{entry.etag}"', "X-Repo-Commit": found.commit}
    if entry.large:
        headers |= {"X-Linked-Etag": f'"{entry.etag}"', "X-Linked-Size": str(entry.size)}
    return Answer(200, store / found.name / entry.path, OCTETS, headers)
