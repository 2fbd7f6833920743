# SPDX-License-Identifier: Apache-2.0
"""Runs the suite on one host, in a process of its own (``python -m lemonade_deploy.verify.worker``).

One JSON request on standard input, one JSON object a line on standard output: ``{"count": n}``,
``{"running": name}``, a test's result as it ends, or ``{"unreachable": why}`` or ``{"absent": why}``. What
pytest prints goes to standard error. The request's ``step`` may ask for a restart or a reboot instead of
the suite.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import pytest
import testinfra  # type: ignore[import-untyped]

from lemonade_deploy.domain.scrub import scrub
from lemonade_deploy.verify import steps
from lemonade_deploy.verify.asking import WANTED_RELEASE

_COMMAND_RESULT = re.compile(
    r"CommandResult\(backend=.*?exit_status=(?P<rc>\d+), command=b(?P<q>['\"])(?P<command>.*?)(?P=q), "
    r"_stdout=b(?P<q1>['\"])(?P<stdout>.*?)(?P=q1), _stderr=b(?P<q2>['\"])(?P<stderr>.*?)(?P=q2)\)",
    re.DOTALL,
)
SUITE = Path(__file__).with_name("suite")


class Reporter:
    """A pytest plugin that tells each result once."""

    def __init__(self, out: TextIO, host: str) -> None:
        self._out = out
        self._host = host
        self._setup: dict[str, float] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """How many there are."""
        self.tell(count=len(session.items))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Which one begins."""
        self.tell(running=readable(nodeid, self._host))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setup that passes and any teardown that passes are no results of their own."""
        if report.when == "setup":
            self._setup[report.nodeid] = report.duration
        if report.when == "call" or report.outcome != "passed":
            self.tell(
                name=readable(report.nodeid, self._host),
                outcome=_outcome(report),
                seconds=report.duration
                + (self._setup.get(report.nodeid, 0.0) if report.when == "call" else 0.0),
                message=scrub(_message(report)),
                evidence=scrub("\n".join(f"{title}:\n{text}" for title, text in report.sections)),
                properties=dict(report.user_properties),
            )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be collected is an error, not a suite with fewer tests."""
        if report.failed:
            self.tell(name=report.nodeid, outcome="error", seconds=0.0, message=str(report.longrepr)[-800:])

    def tell(self, **record: Any) -> None:
        """Write one line."""
        self._out.write(json.dumps(record) + "\n")
        self._out.flush()


class Wishes:
    """A pytest plugin with what the inventory wants of the host."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._release = str(request.get("release") or "")

    def pytest_configure(self, config: pytest.Config) -> None:
        """Leave it where the suite's fixture takes it."""
        config.stash[WANTED_RELEASE] = self._release


def readable(nodeid: str, host: str) -> str:
    """``service::process_runs_as…[render]`` from pytest's name of a test, without the host in it."""
    path, _colons, function = nodeid.partition("::")
    name, _bracket, rest = function.partition("[")
    parameters = rest.rstrip("]").replace(f"ansible://{host}", "").strip("-")
    module = Path(path).stem.removeprefix("test_")
    return f"{module}::{name.removeprefix('test_')}" + (f"[{parameters}]" if parameters else "")


def _outcome(report: pytest.TestReport) -> str:
    return "error" if report.failed and report.when != "call" else report.outcome


def _message(report: pytest.TestReport) -> str:
    """The assertion's own words, without pytest's source listing."""
    if not report.longrepr or report.passed:
        return ""
    if isinstance(report.longrepr, tuple):  # skipped: file, line, words
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return plain(str(crash.message if crash else report.longrepr))[:2000]


def plain(text: str) -> str:
    """Testinfra's CommandResult in *text* as a sentence; the rest as it is."""
    match = _COMMAND_RESULT.search(text)
    if match is None:
        return text.removeprefix("AssertionError: ").removeprefix("Failed: ")
    said = (match["stderr"] or match["stdout"]).replace("\\r", "").replace("\\n", " ").strip()
    command = match["command"]
    shown = command if len(command) <= 120 else f"{command[:120]}…"
    return f"`{shown}` ended with code {match['rc']}: {said or 'it said nothing'}"


def unreachable(spec: str) -> str:
    """Why the host cannot be asked, "" where it can."""
    try:
        done = testinfra.get_host(spec).run("id -u")
    except Exception as error:  # testinfra lets every kind of a transport's error through
        return plain(str(error))[-600:]
    if done.rc != 0:
        return (done.stderr or done.stdout).strip()[-600:] or f"`id -u` ended with code {done.rc}"
    return "" if done.stdout.strip() == "0" else "the commands do not run as root: sudo is missing (-K?)"


def absent(host: Any) -> str:
    """Why there is nothing to test, "" where the kit was at work: one line instead of thirty failures."""
    traces = ("/etc/lemonade-deploy", "/opt/lemonade-deploy")
    if any(host.run(f"test -e {path}").rc == 0 for path in traces):
        return ""
    return f"Lemonade Server was never set up here by lemonade-deploy (none of {', '.join(traces)} is there)."


def step(name: str, spec: str, reporter: Reporter, local: bool) -> None:
    """A restart or a reboot, told like a test."""
    began = time.monotonic()
    reporter.tell(running=f"disruptive::{name}")
    if name == steps.RESTART:
        wrong = steps.restart(testinfra.get_host(spec))
    else:
        wrong = steps.reboot(lambda: testinfra.get_host(spec), local)
    reporter.tell(
        name=f"disruptive::{name}",
        outcome="failed" if wrong else "passed",
        seconds=time.monotonic() - began,
        message=scrub(wrong),
    )


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    query = "?force_ansible=True" if request["force_ansible"] else ""
    spec = f"ansible://{request['host']}{query}"
    reporter = Reporter(out, request["host"])
    why = unreachable(spec)
    if why:
        reporter.tell(unreachable=why)
        return
    if request.get("step"):
        step(request["step"], spec, reporter, bool(request.get("local")))
        return
    why = absent(testinfra.get_host(spec))
    if why:
        reporter.tell(absent=why)
        return
    options = [
        f"--hosts={spec}",
        f"--rootdir={SUITE}",
        "--config-file=/dev/null",
        "--tb=short",
        "-q",
        "-p",
        "no:cacheprovider",
        *(["--force-ansible"] if request["force_ansible"] else []),
    ]
    pytest.main([*options, str(SUITE)], plugins=[reporter, Wishes(request)])


if __name__ == "__main__":
    main()
