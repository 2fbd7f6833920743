# SPDX-License-Identifier: Apache-2.0
"""Whom the callback ends with whom; that it does so in a run is tests/integration/test_cli_mistakes.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "plugins/callback/tied.py"
LOAD = f"import runpy; runpy.run_path({str(PLUGIN)!r})['CallbackModule'](); print('goes on')"


def start(parent: str) -> subprocess.CompletedProcess[str]:
    """An ansible-playbook that was told who its *parent* is."""
    environment = {**os.environ, "LEMONADE_DEPLOY_PID": parent}
    return subprocess.run(
        [sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("parent", [str(os.getpid()), "1", "", "x"])
def test_who_has_a_living_command_goes_on(parent: str) -> None:
    """1: an ansible-playbook that a task started has another parent than the command."""
    done = start(parent)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


def test_whose_command_is_dead_already_ends() -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    assert start(str(dead.pid)).returncode == -signal.SIGTERM
