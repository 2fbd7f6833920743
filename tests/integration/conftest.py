# SPDX-License-Identifier: Apache-2.0
"""The simulated hosts that the integration tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lemonade_deploy.lab import Lab

from .cli_kit import prepare
from .kit import host_of, kit

# A lab of the tests' own beside the one that a person may have up.
os.environ.setdefault("LEMONADE_LAB_DIR", "/var/lib/lemonade-lab-tests")

MAIN = "it-main"  # strix-halo-dirty with vLLM's real CPU engine: the main job
SERVING = "it-serving"
LIGHT = {  # other states of a box, with the light engine: seconds instead of minutes
    "it-dkms": "strix-halo-dirty",
    "it-dark": "strix-halo-dark",
    "it-inactive": "strix-halo-inactive",
    "it-nogpu": "no-gpu",
}


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The tests' lab, empty at the start and gone at the end."""
    opened = Lab.open()
    opened.down()
    yield opened
    opened.down()


@pytest.fixture(scope="session")
def main_host(lab: Lab) -> str:
    """A dirty Strix Halo host, fresh, whose bundle holds the real vLLM (CPU)."""
    lab.up([MAIN], "strix-halo-dirty", "vllm")
    return MAIN


@pytest.fixture(scope="session")
def light_hosts(lab: Lab) -> list[str]:
    """One host for each other state of a box, with the light engine."""
    lab.up_all(LIGHT, "light")
    return list(LIGHT)


@pytest.fixture(scope="session")
def serving(lab: Lab) -> Lab:
    """The lab with one light host that serves: models, verify, secrets and the burn test share it.

    LEMONADE_TEST_ENGINE=vllm runs the same tests with the real vLLM.
    """
    lab.up([SERVING], "strix-halo-clean", os.environ.get("LEMONADE_TEST_ENGINE", "light"))
    ran = kit("site.yml", "-i", str(lab.inventory_path), "-l", SERVING, "--json")
    host = host_of(ran, SERVING)
    assert host["failure"] is None, host["failure"]
    return lab


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to run the command in, on this machine."""
    return prepare(tmp_path)
