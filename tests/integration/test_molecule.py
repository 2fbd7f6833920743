# SPDX-License-Identifier: Apache-2.0
"""The molecule scenarios, whole: check, converge, idempotence and testinfra on a simulated host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lemonade_deploy.content import link_collection

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("scenario", ["default", "driver_dkms"])
def test_scenario(scenario: str) -> None:
    link_collection(ROOT / "build" / "molecule")  # what molecule.yml names as the collection path
    tools = Path(sys.executable).parent
    done = subprocess.run(
        [tools / "molecule", "test", "-s", scenario],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    for action in ("check", "converge", "idempotence", "verify"):
        assert f"{action}: Executed: Successful" in said, f"{action} did not run\n{said[-3000:]}"
