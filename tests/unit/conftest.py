# SPDX-License-Identifier: Apache-2.0
"""Fixtures that more than one file of unit tests uses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle_host import Box
from kernel_sources import PrivateApt
from mainline_site import Signer
from nasty import Nasty, bundle_members, publish, serving, tar_gz

from lemonade_deploy.domain import kernel_search
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
def apt(monkeypatch: pytest.MonkeyPatch) -> type[PrivateApt]:
    """The host's apt; its packages are set by the test."""
    fresh = type("Apt", (PrivateApt,), {"packages": {}, "planned": None, "errors": []})
    monkeypatch.setattr(kernel_search, "PrivateApt", fresh)
    return fresh
