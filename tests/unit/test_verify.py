# SPDX-License-Identifier: Apache-2.0
"""The verb verify around its suite: names, verdicts, JUnit, the way to a host."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from rich.console import Console

import lemonade_deploy
from lemonade_deploy.envelope import Envelope
from lemonade_deploy.verify import fleet, junit, worker
from lemonade_deploy.verify.fleet import Access, as_files
from lemonade_deploy.verify.progress import Progress
from lemonade_deploy.verify.verdict import TestResult, Verdict
from lemonade_deploy.verify.worker import plain, readable

PASSED = TestResult("service::is_enabled", "passed", 0.5)
FAILED = TestResult(
    "gpu::save_areas", "failed", 0.1, "assert not ['node 1']\nmore", "journal:\n\x1b[31mred\x1b[0m"
)
ANSWER = TestResult(
    "completion::completion",
    "passed",
    1.0,
    properties={
        "model": "m",
        "content": "4",
        "finish_reason": "stop",
        "completion_tokens": 12,
        "seconds": 2.0,
    },
)


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("suite/test_service.py::test_is_enabled[ansible://halo-1]", "service::is_enabled"),
        ("test_service.py::test_groups[ansible://halo-1-render]", "service::groups[render]"),
        ("test_endpoint.py::test_key[ansible://halo-1-/v1/health]", "endpoint::key[/v1/health]"),
        ("test_gpu.py::test_alone", "gpu::alone"),
    ],
)
def test_names_of_tests(nodeid: str, name: str) -> None:
    assert readable(nodeid, "halo-1") == name


def test_verdicts() -> None:
    assert Verdict("a", [PASSED]).status == "ok"
    assert Verdict("a", [PASSED, FAILED]).status == "failed"
    assert Verdict("a", [TestResult("x", "error", 0)]).status == "failed"
    assert Verdict("a", [PASSED, TestResult("x", "skipped", 0)]).status == "ok"
    assert Verdict("a").status == "failed", "no test at all proves nothing"
    assert Verdict("a", unreachable="no route").status == "unreachable"


def test_the_document_of_a_host() -> None:
    told = Verdict("a", [PASSED, FAILED, ANSWER]).public()
    assert told["failure"]["task"] == "gpu::save_areas"
    assert told["inference"]["tokens_per_second"] == 6.0
    assert told["tests"][0] == {
        "name": "service::is_enabled",
        "outcome": "passed",
        "seconds": 0.5,
        "message": "",
        "evidence": "",
        "warning": "",
    }
    assert Verdict("a", [PASSED]).public()["failure"] is None


def test_junit_is_xml_whatever_the_journal_holds(tmp_path: Path) -> None:
    path = tmp_path / "verify.xml"
    junit.write(path, [Verdict("a", [PASSED, FAILED]), Verdict("b", unreachable="no route")])
    root = ET.parse(path).getroot()
    first, second = root.findall("testsuite")
    assert (first.get("tests"), first.get("failures"), first.get("errors")) == ("2", "1", "0")
    failure = first.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "assert not ['node 1']"
    assert "red" in str(first.findtext("testcase/system-out"))
    assert (second.get("errors"), second.findtext("testcase/error")) == ("1", "no route")


@pytest.mark.parametrize(
    ("told", "needs"),
    [
        ({"ansible_host": "10.0.0.1", "ansible_user": "deploy", "ansible_local": {}}, False),
        ({"ansible_ssh_common_args": "-o UserKnownHostsFile={{ inventory_dir }}/known_hosts"}, True),
        ({"ansible_connection": "community.general.machinectl"}, True),
        ({"ansible_become_method": "doas"}, True),
        ({"ansible_become_password": {"__ansible_vault": "…"}}, True),
        ({"ansible_connection": "local"}, False),
    ],
)
def test_ansible_is_used_where_plain_ssh_would_not_get_in(told: dict[str, Any], needs: bool) -> None:
    assert Access({}, False, {"a": told}).needs_ansible("a") is needs
    assert Access({}, True, {"a": told}).needs_ansible("a")


def test_no_sudo_for_root() -> None:
    access = Access({}, False, {"a": {"ansible_user": "root"}, "b": {}, "c": {"ansible_connection": "local"}})
    assert access.already_root("a")
    assert not access.already_root("b")
    assert access.already_root("c") is (os.geteuid() == 0)


def test_the_document_keeps_to_its_schema() -> None:
    schema = json.loads((Path(lemonade_deploy.__file__).parent / "schema" / "verify.json").read_text())
    hosts = {
        verdict.host: verdict.public()
        for verdict in (
            Verdict("a", [PASSED, FAILED, ANSWER]),
            Verdict("b", unreachable="no route"),
            Verdict("c"),
        )
    }
    jsonschema.validate(Envelope("verify", ["verify"]).document(1, hosts), schema)


def test_a_command_that_failed_is_told_in_a_sentence() -> None:
    text = (
        "RuntimeError: Unexpected output CommandResult(backend=<testinfra.backend.local.LocalBackend object "
        "at 0x7f>, exit_status=1, command=b'cat -- /x', _stdout=b'', _stderr=b'cat: /x: No such file\\n')"
    )
    assert plain(text) == "`cat -- /x` ended with code 1: cat: /x: No such file"
    assert plain("AssertionError: open on 0.0.0.0") == "open on 0.0.0.0"


def test_a_list_of_hosts_reaches_ansible_whole(tmp_path: Path) -> None:
    plain, listed = as_files(["/some/hosts.yml", "a,b,"], tmp_path)
    assert plain == "/some/hosts.yml"
    assert "," not in Path(listed).name
    assert json.loads(Path(listed).read_text()) == {"all": {"hosts": {"a": None, "b": None}}}


@pytest.mark.parametrize(
    ("told", "release"),
    [
        ({"vllm_rocm_release": "vllm1.2-rocm7.1"}, "vllm1.2-rocm7.1"),
        ({"vllm_rocm_release": "{{ x }}"}, ""),
        ({}, ""),
    ],
)
def test_the_worker_is_told_the_release_of_the_inventory(told: dict[str, str], release: str) -> None:
    reach = fleet.Access({}, hostvars={"h": told})
    asking = fleet._Asking("h", reach, Path(), Progress(Console(), False), [])
    assert asking._request("")["release"] == release
    plugin = worker.Wishes({"release": release})
    assert plugin._release == release


PASS = json.dumps({"name": "service::active", "outcome": "passed", "seconds": 0.1})


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        (['{"count": 1}', PASS], "ok", ""),
        (['{"count": 2}', PASS], "failed", "ended after 1 of 2 tests: Killed"),
        (['{"count": 2}', PASS, '{"name": "endpoint::he'], "failed", "ended after 1 of 2 tests: Killed"),
        ([], "failed", "Killed"),
    ],
)
def test_a_worker_that_dies_leaves_no_host_that_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], status: str, said: str
) -> None:
    program = tmp_path / "worker"
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + "echo Killed >&2\n")
    program.chmod(0o755)
    monkeypatch.setattr(fleet, "sys", SimpleNamespace(executable=str(program)))
    [verdict] = fleet.run(["h"], Access({**os.environ}), tmp_path, 1, Progress(Console(quiet=True)))
    assert (verdict.status, verdict.tests[-1].message) == (status, said)
