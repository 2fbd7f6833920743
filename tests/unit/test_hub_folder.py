# SPDX-License-Identifier: Apache-2.0
"""Models from a folder: what changed meanwhile, links, and folders that are not complete."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from lemonade_deploy.domain import hub_cache
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.hub import File, Repository
from lemonade_deploy.domain.hub_folder import Folder
from lemonade_deploy.domain.refusal import Refused

NAME = "org/model"
SIZE = 1_000_000


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(str(tmp_path))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a model."""
    folder = tmp_path / "srv" / NAME
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"A" * SIZE)
    return folder


def taken(host: Host) -> Path:
    """The snapshot in the cache."""
    return Path(host.path(hub_cache.snapshot(host, NAME) or "/nowhere"))


def begin(host: Host, folder: Folder) -> Repository:
    """A copy that has to go on later, in the middle of the weights."""
    found = folder.repository(NAME)
    for _turn in range(2):
        with pytest.raises(hub_cache.OutOfTime):
            hub_cache.fetch(host, folder, found, hub_cache.Limits(time.monotonic() - 1))
    return found


def test_a_copy_that_goes_on_never_mixes_two_versions(host: Host, model: Path) -> None:
    folder = Folder(host, "/srv")
    begin(host, folder)
    (model / "model.safetensors").write_bytes(b"B" * SIZE)
    hub_cache.fetch(host, folder, folder.repository(NAME))
    assert (taken(host) / "model.safetensors").read_bytes() == b"B" * SIZE


def test_a_copy_goes_on_where_nothing_changed(host: Host, model: Path) -> None:
    folder = Folder(host, "/srv")
    first = begin(host, folder)
    again = Folder(host, "/srv").repository(NAME)
    assert again.commit == first.commit
    assert 0 < hub_cache.missing_bytes(host, again) < SIZE
    hub_cache.fetch(host, folder, again)
    assert (taken(host) / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_a_file_that_changes_while_it_is_copied_is_refused(host: Host, model: Path) -> None:
    folder = Folder(host, "/srv")
    found = folder.repository(NAME)
    file = next(one for one in found.files if one.path == "model.safetensors")
    chunks = folder.download(found, file).chunks()
    next(chunks)
    os.utime(model / "model.safetensors", ns=(1, 1))
    with pytest.raises(Refused, match="changed while it was copied"):
        list(chunks)
    with pytest.raises(Refused, match="changed while it was copied"):
        hub_cache.fetch(host, folder, found)
    assert not hub_cache.complete(host, NAME)


def test_what_was_begun_of_an_earlier_state_does_not_fill_the_disk(host: Host, model: Path) -> None:
    folder = Folder(host, "/srv")
    old = begin(host, folder)
    os.utime(model / "model.safetensors", ns=(1, 1))
    new = begin(host, folder)
    assert old.commit != new.commit
    assert host.listdir(f"{hub_cache.place(NAME)}/{hub_cache.PARTIAL}") == [new.commit]


def test_a_link_to_nowhere_is_named(host: Host, model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("../../blobs/abc")
    with pytest.raises(Refused, match=r"model\.safetensors is a link to nowhere"):
        Folder(host, "/srv").repository(NAME)


def test_a_link_to_nowhere_that_nobody_needs_does_no_harm(host: Host, model: Path) -> None:
    (model / "pytorch_model.bin").symlink_to("../../blobs/abc")
    found = Folder(host, "/srv").repository(NAME)
    assert [file.path for file in found.files] == ["config.json", "model.safetensors"]


def test_linked_folders_are_followed_to_their_end(host: Host, model: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "t.json").write_text("1")
    (model / "tokenizer").symlink_to(tmp_path / "real")
    (model / "round").symlink_to(model)
    (model / ".git").mkdir()
    (model / ".git" / "config").write_text("x")
    folder = Folder(host, "/srv")
    found = folder.repository(NAME)
    assert [file.path for file in found.files] == ["config.json", "model.safetensors", "tokenizer/t.json"]
    hub_cache.fetch(host, folder, found)
    assert (taken(host) / "tokenizer" / "t.json").read_text() == "1"


@pytest.mark.parametrize("path", ["config.json", "sub/model.safetensors"])
def test_a_repository_without_weights_is_refused_before_a_byte(host: Host, path: str) -> None:
    found = Repository(NAME, "abc", False, (File(path, 2),))
    with pytest.raises(Refused, match="holds no weights"):
        hub_cache.fetch(host, Folder(host, "/srv"), found)
    assert not Path(host.path(hub_cache.place(NAME))).exists()


def test_an_index_that_names_more_than_is_there(host: Host, model: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    folder = Folder(host, "/srv")
    with pytest.raises(Refused, match="names parts that are not there"):
        hub_cache.fetch(host, folder, folder.repository(NAME))
    assert not hub_cache.complete(host, NAME)
    (model / "model-00002.safetensors").write_text("b")
    hub_cache.fetch(host, folder, folder.repository(NAME))
    assert hub_cache.complete(host, NAME)
