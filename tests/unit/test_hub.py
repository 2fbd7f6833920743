# SPDX-License-Identifier: Apache-2.0
"""The hub and the folder: what is listed, what is refused, how a download goes on, what is never written."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.domain import hub_cache
from lemonade_deploy.domain.fetch import FetchError, Policy
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.hub import File, Hub, Repository, needed, odd
from lemonade_deploy.domain.hub_folder import Folder
from lemonade_deploy.domain.refusal import Refused
from lemonade_deploy.lab.engine import hub as lab_hub
from lemonade_deploy.lab.services import faults
from lemonade_deploy.lab.services.server import AccessLog, Handler, Server

QUICK = Policy(attempts=2, backoff=0.01)
NAME = "org/model"
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A hub's store with one model."""
    folder = tmp_path / "www" / "127.0.0.1" / NAME
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "pytorch_model.bin").write_bytes(b"the same once more")
    return tmp_path / "www"


@pytest.fixture
def url(store: Path) -> Iterator[str]:
    """The store, served as the lab's hub does."""
    hooks: Any = {"127.0.0.1": lambda request, _site: lab_hub.hub(request, store / "127.0.0.1")}
    log = AccessLog(io.StringIO())
    handler = partial(Handler, www=store, hooks=hooks, faults=faults.Faults(store), log=log)
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_repository_is_what_the_engine_needs(url: str) -> None:
    found = Hub(url).repository(NAME)
    assert {file.path for file in found.files} == {"config.json", "model.safetensors"}
    weights = next(file for file in found.files if file.path == "model.safetensors")
    assert (weights.size, weights.sha256) == (1 << 20, hashlib.sha256(WEIGHTS).hexdigest())
    assert len(found.commit) == 40 and not found.gated
    assert Hub(url).text(found, "config.json") == '{"model_type": "qwen3"}'
    assert Hub(url).text(found, "nothing.json") is None


def test_without_safetensors_everything_is_needed() -> None:
    files = [File("a.gguf", 1), File("b.bin", 1)]
    assert needed(files) == tuple(files)


def test_an_unknown_repository_is_told(url: str) -> None:
    with pytest.raises(Refused, match="has no model org/nothing"):
        Hub(url).repository("org/nothing")


@pytest.mark.parametrize(
    ("token", "words"), [("", "none is set"), ("hf_wrong", "may not have it yet"), ("hf_right", "")]
)
def test_a_gated_repository(store: Path, url: str, token: str, words: str) -> None:
    (store / "127.0.0.1" / NAME / lab_hub.GATED).write_text("hf_right\n")
    hub = Hub(url, token)
    found = hub.repository(NAME)
    assert found.gated
    if not words:
        hub.check_access(found)
        return
    with pytest.raises(Refused, match=words) as refused:
        hub.check_access(found)
    assert "lemonade_server_hf_token" in refused.value.remedy


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x", "a/../../x", "a\0b"])
def test_paths_that_lead_elsewhere(path: str) -> None:
    assert odd(path)
    assert not odd("sub/model..v2.safetensors")


def cached(root: Path, path: str = "") -> Path:
    return root / "host/var/cache/huggingface/hub/models--org--model" / path


def test_a_download_lands_whole_and_only_then(tmp_path: Path, url: str) -> None:
    host, hub = Host(str(tmp_path / "host")), Hub(url)
    found = hub.repository(NAME)
    assert hub_cache.missing_bytes(host, found) == found.size
    hub_cache.fetch(host, hub, found)
    assert hub_cache.complete(host, NAME)
    assert (cached(tmp_path) / "snapshots" / found.commit / "model.safetensors").read_bytes() == WEIGHTS
    assert cached(tmp_path, "refs/main").read_text() == found.commit
    assert not cached(tmp_path, hub_cache.PARTIAL).exists()


def test_one_that_broke_goes_on_where_it_was(tmp_path: Path, store: Path, url: str) -> None:
    host, hub = Host(str(tmp_path / "host")), Hub(url, policy=Policy(attempts=1))
    found = hub.repository(NAME)
    faults.write(store, [faults.Fault("127.0.0.1", "*.safetensors", cut_after=300_000)])
    with pytest.raises(FetchError):
        hub_cache.fetch(host, hub, found)
    assert not hub_cache.complete(host, NAME)
    left = hub_cache.missing_bytes(host, found)
    assert 0 < left < found.size - 299_000
    faults.write(store, [])
    hub_cache.fetch(host, hub, found)
    assert hub_cache.complete(host, NAME)


def test_a_slice_of_time_ends_and_tells_how_far(tmp_path: Path, url: str) -> None:
    host, hub = Host(str(tmp_path / "host")), Hub(url)
    found = hub.repository(NAME)
    turns = 0
    while not hub_cache.complete(host, NAME):
        turns += 1
        try:
            hub_cache.fetch(host, hub, found, hub_cache.Limits(time.monotonic() - 1))
        except hub_cache.OutOfTime as over:
            assert 0 < over.done <= over.total == found.size
    assert turns > 2


def test_bytes_that_are_not_what_the_hub_says_are_refused(tmp_path: Path, url: str) -> None:
    host, hub = Host(str(tmp_path / "host")), Hub(url)
    found = hub.repository(NAME)
    lying = Repository(
        found.name,
        found.commit,
        False,
        tuple(File(file.path, file.size, "0" * 64 if file.sha256 else "", file.blob) for file in found.files),
    )
    with pytest.raises(Refused, match="another digest"):
        hub_cache.fetch(host, hub, lying)
    assert not hub_cache.complete(host, NAME)
    hub_cache.fetch(host, hub, found)  # nothing of the bad one is taken up


def test_a_model_with_a_part_missing_is_not_complete(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    folder = f"{hub_cache.place(NAME)}/snapshots/abc"
    host.write(f"{folder}/model-00001-of-00002.safetensors", "x")
    assert hub_cache.complete(host, NAME)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    host.write(f"{folder}/model.safetensors.index.json", json.dumps(index))
    assert not hub_cache.complete(host, NAME)
    host.write(f"{folder}/model-00002-of-00002.safetensors", "x")
    assert hub_cache.complete(host, NAME)
    for text in ("[]", '{"weight_map": null}', '{"weight_map": {"a": []}}'):
        host.write(f"{folder}/model.safetensors.index.json", text)
        assert not hub_cache.complete(host, NAME)


@pytest.mark.parametrize("layout", ["srv/org/model", "srv/models--org--model/snapshots/abc"])
def test_a_folder_in_both_layouts(tmp_path: Path, layout: str) -> None:
    root = tmp_path / "host"
    (root / layout / "sub").mkdir(parents=True)
    (root / layout / "config.json").write_text("{}")
    (root / layout / "sub" / "model.safetensors").write_text("weights")
    (root / layout / "model.safetensors").write_bytes(WEIGHTS)
    host = Host(str(root))
    folder = Folder(host, "/srv")
    found = folder.repository(NAME)
    assert folder.text(found, "config.json") == "{}"
    hub_cache.fetch(host, folder, found)
    assert hub_cache.complete(host, NAME)
    taken = cached(tmp_path) / "snapshots" / found.commit
    assert (taken / "sub" / "model.safetensors").read_text() == "weights"
    with pytest.raises(Refused, match="holds no model org/other"):
        folder.repository("org/other")
