# SPDX-License-Identifier: Apache-2.0
"""What the tests share. They ask the host itself and import nothing of the roles' code.

Every path and number here is written down again on purpose: a suite that shares the roles'
constants would share their mistakes.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Generator
from typing import Any

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from lemonade_deploy.verify.asking import WANTED_RELEASE, Api, Reply

DEFAULTS = "/etc/lemonade-deploy/lemond-defaults.json"
UNITS = {"lemond": "lemond.service", "vllm": "lemonade-vllm.service"}
VLLM_UNIT = "/etc/systemd/system/lemonade-vllm.service"


@pytest.fixture(scope="module")
def daemon(host: Host) -> str:
    """What serves here: lemond, or vLLM itself."""
    return "vllm" if host.file(VLLM_UNIT).exists else "lemond"


@pytest.fixture(scope="session")
def wanted_release(pytestconfig: pytest.Config) -> str:
    """The release that the inventory names; "" where it names none, or where molecule runs the suite."""
    return pytestconfig.stash.get(WANTED_RELEASE, "")


@pytest.fixture(scope="module")
def unit(host: Host, daemon: str) -> dict[str, str]:
    """Properties of the service's unit, as systemd runs it."""
    names = (
        "ActiveState,SubState,UnitFileState,FragmentPath,MainPID,User,NeedDaemonReload,LimitMEMLOCK,NRestarts,"
        "NoNewPrivileges,ProtectSystem,ProtectHome,PrivateTmp,RestrictNamespaces,DevicePolicy,ControlGroup,"
        "CapabilityBoundingSet,ActiveEnterTimestampMonotonic,Type"
    )
    shown = host.run(f"systemctl show -p {names} {UNITS[daemon]}")
    if shown.rc != 0:
        pytest.fail(f"systemd cannot be asked: {shown.stderr.strip()}", pytrace=False)
    return {"Id": UNITS[daemon], **dict(line.partition("=")[::2] for line in shown.stdout.splitlines())}


@pytest.fixture(scope="module")
def process(host: Host, unit: dict[str, str]) -> dict[str, Any]:
    """The running daemon: its pid, real user and group ids, environment's names and values."""
    pid = unit["MainPID"]
    if pid == "0":
        pytest.fail(f"{unit['Id']} does not run", pytrace=False)
    status = dict(
        line.partition(":")[::2] for line in host.file(f"/proc/{pid}/status").content_string.splitlines()
    )
    environment = host.check_output(
        f"tr '\\0' '\\n' < /proc/{pid}/environ | grep -vE '^[A-Z_]*(KEY|TOKEN|SECRET|PASSWORD)='"
    )
    return {
        "pid": int(pid),
        "uid": int(status["Uid"].split()[0]),
        "groups": {int(number) for number in status["Groups"].split()},
        "environment": dict(line.partition("=")[::2] for line in environment.splitlines()),
    }


@pytest.fixture(scope="module")
def command(host: Host) -> list[str]:
    """The command line in vLLM's own unit."""
    line = re.search(r"^ExecStart=(.*)$", host.file(VLLM_UNIT).content_string, re.MULTILINE)
    assert line, f"{VLLM_UNIT} starts nothing"
    return shlex.split(line[1].replace("%%", "%").replace("$$", "$"))


@pytest.fixture(scope="module")
def settings(host: Host, daemon: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The defaults file that the kit wrote for lemond; for vLLM what its command line says."""
    if daemon == "vllm":
        words = request.getfixturevalue("command")
        return {
            "host": words[words.index("--host") + 1],
            "port": int(words[words.index("--port") + 1]),
            "model": words[words.index("--served-model-name") + 1],
            "checkpoint": words[words.index("--model") + 1],
            "ctx_size": int(words[words.index("--max-model-len") + 1])
            if "--max-model-len" in words
            else None,
        }
    if not host.file(DEFAULTS).exists:
        pytest.fail(f"{DEFAULTS} is missing: Lemonade Server was not set up here", pytrace=False)
    value = json.loads(host.file(DEFAULTS).content_string)
    assert isinstance(value, dict)
    return value


@pytest.fixture(scope="module")
def api(host: Host, settings: dict[str, Any]) -> Api:
    """The daemon at the address of its settings."""
    address = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings["host"], settings["host"])  # noqa: S104
    return Api(host, f"http://{address}:{settings['port']}")


@pytest.fixture(scope="module")
def model(api: Api, daemon: str, settings: dict[str, Any]) -> str:
    """The model to ask: the one that vLLM has loaded, else one that is downloaded."""
    if daemon == "vllm":
        return str(settings["model"])
    loaded = [entry for entry in api.get("/v1/health").json["all_models_loaded"] if entry["recipe"] == "vllm"]
    if loaded:
        command = loaded[0]["launch_command"]
        return str(command[command.index("--served-model-name") + 1])
    models = [m for m in api.get("/v1/models").json["data"] if m["recipe"] == "vllm" and m["downloaded"]]
    assert models, "lemond has no downloaded model of the recipe vllm"
    own = "custom" in models[0].get("labels", [])
    return f"user.{models[0]['id']}" if own else str(models[0]["id"])


@pytest.fixture(scope="module")
def answer(api: Api, model: str) -> Reply:
    """One greedy completion."""
    return api.chat(model)


@pytest.fixture(scope="module")
def engine(host: Host, api: Api, answer: Reply, daemon: str, unit: dict[str, str]) -> dict[str, Any]:
    """The process that answered: lemond's entry of it and the program it runs."""
    assert answer.status == 200, answer.text
    if daemon == "vllm":
        pid = int(unit["MainPID"])
        program = host.check_output(f"readlink /proc/{pid}/exe")
        return {"entry": {"backend_health": "ready"}, "pid": pid, "program": program}
    entries = [e for e in api.get("/v1/health").json["all_models_loaded"] if e["recipe"] == "vllm"]
    assert entries, "after a completion lemond shows no loaded model of the recipe vllm"
    pid = int(entries[0]["pid"])
    return {"entry": entries[0], "pid": pid, "program": host.check_output(f"readlink /proc/{pid}/exe")}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Evidence with each failure: the journal of the service, and the kernel's where it is the cause."""
    report = yield
    kernel = dict(item.user_properties).get("kernel_log")
    if report.failed and kernel:
        report.sections.append(("the kernel's log", str(kernel)))
    host = getattr(item, "funcargs", {}).get("host")
    if report.failed and host is not None and call.excinfo is not None:
        try:
            lines = host.run("journalctl -u lemond -u lemonade-vllm -n 25 -o cat --no-pager").stdout
        except Exception as error:  # the host may be what failed; the failure itself must not get lost
            lines = f"(no journal: {error})"
        report.sections.append(("journal of the service", lines))
    return report
