# SPDX-License-Identifier: Apache-2.0
"""Fixtures that more than one file of unit tests uses."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle_host import Box
from depot_server import TOKEN, bring, running
from kernel_sources import PrivateApt
from mainline_site import Signer
from nasty import TAG, Nasty, bundle_members, publish, serving, tar_gz

from lemonade_deploy.depot import fetch, pack
from lemonade_deploy.domain import disk, kernel_search
from lemonade_deploy.domain.bundle_sources import Place
from lemonade_deploy.domain.lock import Release


@pytest.fixture(scope="session")
def signer() -> Iterator[Signer]:
    """The pinned key."""
    made = Signer.make()
    yield made
    shutil.rmtree(made.home)


@pytest.fixture(scope="session")
def stranger() -> Iterator[Signer]:
    """Somebody else's key."""
    made = Signer.make()
    yield made
    shutil.rmtree(made.home)


@pytest.fixture
def server() -> Iterator[Nasty]:
    """A server that can misbehave."""
    with serving() as running:
        yield running


@pytest.fixture
def box(tmp_path: Path, server: Nasty) -> Box:
    """A host of the bundle layer that knows this server."""
    return Box(tmp_path / "host", server.url)


@pytest.fixture
def releases(server: Nasty) -> list[Release]:
    """Three releases of one family."""
    return [publish(server, tar_gz(bundle_members(n)), tag=f"vllm{n}-rocm7-gfx1151")[0] for n in range(3)]


@pytest.fixture
def release(server: Nasty) -> Release:
    """A release whose lock names each file's own address on this server."""
    made = publish(server, tar_gz(bundle_members()))[0]
    assets = tuple(dataclasses.replace(a, url=f"{server.url}/{TAG}/{a.name}") for a in made.assets)
    return dataclasses.replace(made, assets=assets)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges and chunks so small that a release of the tests has several of each."""
    monkeypatch.setattr(fetch, "SEGMENT", 10_000)
    monkeypatch.setattr(pack, "PLAIN", 50_000)


@pytest.fixture
def depot(tmp_path: Path, release: Release, small_parts: None) -> Iterator[tuple[Path, Place]]:
    """A filled depot that is served, and its place."""
    folder = tmp_path / "depot"
    bring(folder, release)
    pack.pack(folder, release)
    with running(folder) as url:
        yield folder, Place("depot", url, TOKEN)


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> type[PrivateApt]:
    """The host's apt; its packages are set by the test."""
    fresh = type("Apt", (PrivateApt,), {"packages": {}, "planned": None, "errors": []})
    monkeypatch.setattr(kernel_search, "PrivateApt", fresh)
    return fresh


@pytest.fixture
def plenty_of_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file system has 500 GiB free."""
    monkeypatch.setattr(disk, "free_bytes", lambda _host, _path: 500 * disk.GIB)
