# SPDX-License-Identifier: Apache-2.0
"""Fixtures that more than one file of unit tests uses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from kernel_sources import PrivateApt
from mainline_site import Signer
from nasty import Nasty, serving

from lemonade_deploy.domain import kernel_search


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
def apt(monkeypatch: pytest.MonkeyPatch) -> type[PrivateApt]:
    """The host's apt; its packages are set by the test."""
    fresh = type("Apt", (PrivateApt,), {"packages": {}, "planned": None, "errors": []})
    monkeypatch.setattr(kernel_search, "PrivateApt", fresh)
    return fresh
