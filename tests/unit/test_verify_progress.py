# SPDX-License-Identifier: Apache-2.0
"""verify while it runs: signs of life, and the order of --disruptive; workers are stand-ins."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lemonade_deploy.cli import verify as verb
from lemonade_deploy.verify import fleet, steps
from lemonade_deploy.verify.fleet import Access
from lemonade_deploy.verify.progress import Progress
from lemonade_deploy.verify.verdict import TestResult, Verdict


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200), out


def test_a_pipe_gets_signs_of_life() -> None:
    shown, out = console()
    with Progress(shown, heartbeat=0.02) as progress:
        progress.begin("halo-1", "")
        progress.counted("halo-1", 34)
        progress.running("halo-1", "completion::completion")
        progress.ended("halo-1", TestResult("service::active", "passed", 0.1))
        until = time.monotonic() + 60
        while "1 of 34 tests  completion::completion" not in out.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
        progress.finished("halo-1")
    assert "0:00  halo-1  1 of 34 tests  completion::completion" in out.getvalue()
    assert "service::active" not in out.getvalue()


def test_failures_and_warnings_are_lines_of_their_own() -> None:
    shown, out = console()
    with Progress(shown) as progress:
        progress.begin("a", "after restart")
        progress.ended("a", TestResult("x", "failed", 0.1))
        progress.ended("a", TestResult("y", "passed", 0.1, properties={"warning": "others ask"}))
        assert "after restart: 2 tests" in progress.lines()[0]
    assert "a  failed  x" in out.getvalue() and "a  warning y" in out.getvalue()


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins: each says what the file *answers* holds for its step, and notes that it was asked."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, sys\n"
        "request = json.load(sys.stdin)\n"
        f"open({str(tmp_path / 'asked')!r}, 'a').write((request['step'] or 'suite') + '\\n')\n"
        f"answers = json.load(open({str(tmp_path / 'answers')!r}))\n"
        "for line in answers[request['step'] or 'suite']: print(json.dumps(line))\n"
    )
    real = fleet.subprocess.Popen

    def popen(_argv: list[str], **more: Any) -> Any:
        return real([sys.executable, str(script)], **more)

    monkeypatch.setattr(fleet.subprocess, "Popen", popen)
    return tmp_path


def result(name: str, outcome: str = "passed") -> dict[str, Any]:
    return {"name": name, "outcome": outcome, "seconds": 0.1, "message": "", "evidence": "", "properties": {}}


def ask(folder: Path, answers: dict[str, Any], disruptive: bool = True) -> tuple[Verdict, list[str]]:
    (folder / "answers").write_text(json.dumps(answers))
    (folder / "asked").write_text("")
    shown, _out = console()
    with Progress(shown) as progress:
        (verdict,) = fleet.run(["a"], Access({}), folder, 1, progress, disruptive)
    return verdict, (folder / "asked").read_text().split()


GOOD = {
    "suite": [{"count": 1}, {"running": "s"}, result("s")],
    steps.RESTART: [{"running": "disruptive::restart"}, result("disruptive::restart")],
    steps.REBOOT: [result("disruptive::reboot")],
}


def test_disruptive_asks_again_after_each_step(workers: Path) -> None:
    verdict, asked = ask(workers, GOOD)
    assert asked == ["suite", "restart", "suite", "reboot", "suite"]
    names = [test.name for test in verdict.tests]
    assert names == ["s", "disruptive::restart", "after_restart::s", "disruptive::reboot", "after_reboot::s"]
    assert verdict.status == "ok"
    assert ask(workers, GOOD, disruptive=False)[1] == ["suite"]


def test_a_host_with_a_failure_is_not_disturbed_further(workers: Path) -> None:
    verdict, asked = ask(workers, {**GOOD, "suite": [result("s", "failed")]})
    assert asked == ["suite"] and verdict.status == "failed"
    assert [test.outcome for test in verdict.tests] == ["failed", "skipped", "skipped"]
    verdict, asked = ask(workers, {**GOOD, steps.RESTART: [result("disruptive::restart", "failed")]})
    assert asked == ["suite", "restart"] and verdict.status == "failed"


def test_where_nothing_was_set_up_one_line_says_so(workers: Path) -> None:
    verdict, asked = ask(workers, {**GOOD, "suite": [{"absent": "Never set up here."}]})
    assert asked == ["suite"] and verdict.tests == []
    told = verdict.public()
    assert told["failure"]["message"] == "Never set up here."
    assert "site.yml" in told["failure"]["remedy"]
    shown, out = console()
    verb.show(shown, [verdict])
    assert out.getvalue().count("Never set up here.") == 1


class Machine:
    """A host whose boot id changes after a reboot was asked for."""

    def __init__(self, boots: list[str]) -> None:
        self._boots = iter(boots)
        self.asked: list[str] = []

    def run(self, command: str) -> Any:
        self.asked.append(command)
        out = next(self._boots, "new") if steps.BOOT_ID in command else "running\n"
        if out == "gone":
            raise ConnectionError("no route")
        return type("Done", (), {"stdout": out, "stderr": "", "rc": 0})()


def test_a_reboot_is_another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_PAUSE", 0.01)
    machine = Machine(["old", "old", "gone", "gone", "new"])
    assert steps.reboot(lambda: machine, local=False) == ""
    assert [command for command in machine.asked if "systemctl reboot" in command]
    assert "does not answer" in steps.reboot(lambda: Machine(["old"] * 99), local=False, timeout=0.1)


def test_this_very_machine_is_not_rebooted() -> None:
    machine = Machine(["old"])
    assert "the machine that this command runs on" in steps.reboot(lambda: machine, local=True)
    own = Path(steps.BOOT_ID).read_text().strip()
    machine = Machine([own])
    assert "the machine that this command runs on" in steps.reboot(lambda: machine, local=False)
    assert not [command for command in machine.asked if "reboot" in command]
