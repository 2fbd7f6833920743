# SPDX-License-Identifier: Apache-2.0
"""A stop before Ansible runs: exit 1, one document, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# A dynamic inventory that says it was asked, and then takes its time.
SLOW = "#!/bin/sh\ntouch asked\nexec sleep 15\n"


STOPS = [
    ("play.yml", signal.SIGINT),
    ("play.yml", signal.SIGTERM),
    ("play.yml", signal.SIGHUP),
    ("doctor", signal.SIGTERM),
    ("verify", signal.SIGINT),
]


@pytest.mark.parametrize(("verb", "number"), STOPS)
def test_a_stop_before_the_run_is_exit_1_with_one_document(
    verb: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "play.yml").write_text("- hosts: all\n  tasks: []\n")
    (tmp_path / "slow").write_text(SLOW)
    (tmp_path / "slow").chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "lemonade_deploy", verb, "-i", "slow", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "asked").exists() and time.monotonic() < deadline:
        time.sleep(0.05)  # until the checks are under way
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1, stderr
    found = json.loads(stdout)
    assert (found["exit_code"], found["hosts"], found["error"]["message"]) == (1, {}, "Stopped.")
    assert "Traceback" not in stderr
    assert list((tmp_path / "tmp").glob("lemonade-deploy-*")) == []
