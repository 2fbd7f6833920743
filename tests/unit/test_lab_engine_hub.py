# SPDX-License-Identifier: Apache-2.0
"""The simulated huggingface.co, judged as its two clients judge the real one."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from lemonade_deploy.lab.engine.hub import HOOKS
from lemonade_deploy.lab.services.answers import Answer, Request

REPO = "org/model"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store" / REPO
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}\n")
    (folder / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "secret.json").write_text("not served")
    return tmp_path / "store"


def ask(store: Path, target: str, method: str = "GET") -> Answer:
    given = HOOKS["huggingface.co"](Request.parse(method, "huggingface.co", target), store)
    assert given is not None
    return given


def content(given: Answer) -> bytes:
    return given.body if isinstance(given.body, bytes) else given.body.read_bytes()


def test_lemond_can_check_every_file_that_it_pulls(store: Path) -> None:
    info = json.loads(content(ask(store, f"/api/models/{REPO}?blobs=true")))
    assert [item["rfilename"] for item in info["siblings"]] == ["config.json", "model.safetensors"]
    for item in info["siblings"]:
        data = content(ask(store, f"/{REPO}/resolve/{info['sha']}/{item['rfilename']}"))
        assert item["size"] == len(data)
        if "lfs" in item:
            assert item["lfs"]["sha256"] == hashlib.sha256(data).hexdigest()
        else:  # what `git hash-object` says
            assert item["blobId"] == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    assert ["lfs" in item for item in info["siblings"]] == [False, True]


def test_the_hub_client_of_vllm_finds_commit_and_etag(store: Path) -> None:
    commit = json.loads(content(ask(store, f"/api/models/{REPO}/revision/main")))["sha"]
    head = ask(store, f"/{REPO}/resolve/main/model.safetensors", "HEAD")
    digest = hashlib.sha256(b"weights").hexdigest()
    assert (head.status, head.headers["X-Repo-Commit"]) == (200, commit)
    assert head.headers["ETag"] == head.headers["X-Linked-Etag"] == f'"{digest}"'
    assert head.headers["X-Linked-Size"] == "7"
    tree = json.loads(content(ask(store, f"/api/models/{REPO}/tree/{commit}?recursive=true&expand=false")))
    assert [(item["type"], item["path"], item["size"]) for item in tree] == [
        ("file", "config.json", 3),
        ("file", "model.safetensors", 7),
    ]


def test_a_changed_file_is_another_commit(store: Path) -> None:
    before = ask(store, f"/{REPO}/resolve/main/config.json").headers
    (store / REPO / "config.json").write_text('{"a": 1}\n')
    after = ask(store, f"/{REPO}/resolve/main/config.json").headers
    assert before["ETag"] != after["ETag"] and before["X-Repo-Commit"] != after["X-Repo-Commit"]
    assert ask(store, f"/{REPO}/resolve/{before['X-Repo-Commit']}/config.json").status == 404


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/api/models/org/other", "RepoNotFound"),
        ("/org/other/resolve/main/config.json", "RepoNotFound"),
        (f"/{REPO}/resolve/main/added_tokens.json", "EntryNotFound"),
        (f"/{REPO}/resolve/v2/config.json", "RevisionNotFound"),
        (f"/api/models/{REPO}/tree/v2", "RevisionNotFound"),
        ("/api/whoami-v2", "NotFound"),
        ("/api/models/../store", "RepoNotFound"),
        ("/%2e%2e/store/resolve/main/org/model/config.json", "RepoNotFound"),
        (f"/{REPO}/resolve/main/../../../secret.json", "EntryNotFound"),
    ],
)
def test_what_is_not_there_says_so_in_the_hubs_way(store: Path, target: str, code: str) -> None:
    given = ask(store, target)
    assert (given.status, given.headers["X-Error-Code"]) == (404, code)
    assert "error" in json.loads(content(given))


def test_reading_a_store_again_reads_no_file(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = content(ask(store, f"/api/models/{REPO}"))
    weights = store / REPO / "model.safetensors"
    state = weights.stat()
    weights.write_bytes(b"changed")  # same size; put the time back: nobody is told
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert content(ask(store, f"/api/models/{REPO}")) == first
