# SPDX-License-Identifier: Apache-2.0
"""The main job on a dirty Strix Halo host, through every layer, with the real vLLM (CPU build).

The tests build on each other in file order, as a person's day does: predict, run, run
again, ask, restart, reboot.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lemonade_deploy.lab import Lab

from .kit import changed, disk, host_of, kit, reboot

pytestmark = pytest.mark.lab

ASK = ["curl", "-sS", "--fail", "--max-time", "300", "-H", "Content-Type: application/json", "-d", "@-"]
PROMPT = {
    "model": "user.SmolLM2-135M",
    "temperature": 0,
    "max_tokens": 30,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}


def site(lab: Lab, host: str, *more: str) -> Any:
    return kit("site.yml", "-i", str(lab.inventory_path), "-l", host, "--json", *more)


def ask(lab: Lab, host: str) -> str:
    """The model's answer to a prompt of ours, asked on the host itself."""
    done = lab.exec(
        host,
        [*ASK, "http://127.0.0.1:13305/v1/chat/completions"],
        stdin=json.dumps(PROMPT),
    )
    assert done.rc == 0, done.stderr
    answer: str = json.loads(done.stdout)["choices"][0]["message"]["content"]
    return answer


def wait_live(lab: Lab, host: str) -> None:
    """Until lemond answers; curl retries, at most two minutes."""
    retry = ["--retry", "120", "--retry-all-errors", "--retry-delay", "1", "--retry-max-time", "120"]
    done = lab.exec(host, ["curl", "-sS", *retry, "http://127.0.0.1:13305/live"])
    assert done.rc == 0, done.stderr


@pytest.fixture(scope="module")
def predicted(lab: Lab, main_host: str) -> set[tuple[str, str, str]]:
    """What --check says of the dirty host; the disk must be byte-identical afterwards."""
    upper = lab.host(main_host).folder / "upper"
    before = disk(upper)
    ran = site(lab, main_host, "--check")
    host = host_of(ran, main_host)
    assert host["status"] == "changed", host
    assert ran.rc == 2
    after = disk(upper)
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == set()
    return changed(host)


@pytest.fixture(scope="module")
def converged(lab: Lab, main_host: str, predicted: set[tuple[str, str, str]]) -> dict[str, Any]:
    ran = site(lab, main_host)
    host = host_of(ran, main_host)
    assert host["failure"] is None, host
    assert ran.rc == 0
    return host


def test_check_predicts_what_the_run_does(
    predicted: set[tuple[str, str, str]], converged: dict[str, Any]
) -> None:
    assert changed(converged) == predicted
    assert ("amdgpu_driver", "package amdgpu-dkms", "purge") in predicted
    assert ("activate", "host", "reboot") in predicted


def test_the_host_was_put_right(converged: dict[str, Any]) -> None:
    assert converged["status"] == "changed"
    assert converged["rebooted"] is True
    assert converged["kernel"] == "7.0.0-31-generic"
    (gpu,) = converged["gpu"]
    assert gpu["gfx"] == "gfx1151"
    assert gpu["driver"] == "in-tree"
    assert (gpu["cwsr"], gpu["cwsr_size"], gpu["ctl_stack_size"]) == ("ok", 19185664, 16384)


def test_the_answer_is_a_models(converged: dict[str, Any]) -> None:
    answer = converged["inference"]
    assert answer["content"].strip()
    assert answer["finish_reason"] in {"stop", "length"}
    assert answer["completion_tokens"] > 0
    assert answer["tokens_per_second"] > 0


def test_a_prompt_of_ours_is_answered_by_vllm_of_this_bundle(
    lab: Lab, main_host: str, converged: dict[str, Any]
) -> None:
    assert "Paris" in ask(lab, main_host)
    done = lab.exec(
        main_host, ["sudo", "pgrep", "-u", "lemonade", "-af", "vllm.entrypoints.openai.api_server"]
    )
    assert done.rc == 0, "no api_server process of vLLM runs as lemonade"
    pid = done.stdout.split()[0]
    exe = lab.exec(main_host, ["sudo", "readlink", f"/proc/{pid}/exe"]).stdout.strip()
    assert exe.startswith(converged["bundle"]["path"] + "/"), exe
    assert Path(converged["bundle"]["path"]).name == converged["bundle"]["tag"]


def test_a_second_run_changes_nothing(lab: Lab, main_host: str, converged: dict[str, Any]) -> None:
    ran = site(lab, main_host)
    host = host_of(ran, main_host)
    assert (ran.rc, host["status"], host["changed"], host["rebooted"]) == (0, "ok", [], False)


def test_check_on_a_converged_host_finds_nothing(lab: Lab, main_host: str, converged: dict[str, Any]) -> None:
    ran = site(lab, main_host, "--check")
    assert (ran.rc, host_of(ran, main_host)["changed"]) == (0, [])


def test_verify_asserts_the_endpoint_and_writes_junit(
    lab: Lab, main_host: str, converged: dict[str, Any], tmp_path: Path
) -> None:
    junit = tmp_path / "verify.xml"
    ran = kit("verify", "-i", str(lab.inventory_path), "-l", main_host, "--junit", str(junit), "--json")
    assert ran.rc == 0, ran.stdout + ran.stderr
    suite = next(ElementTree.parse(junit).iter("testsuite"))
    assert int(suite.get("tests", "0")) >= 8
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")


def test_a_restart_of_lemond_needs_no_operator(lab: Lab, main_host: str, converged: dict[str, Any]) -> None:
    assert lab.exec(main_host, ["sudo", "systemctl", "restart", "lemond"]).rc == 0
    wait_live(lab, main_host)
    assert "Paris" in ask(lab, main_host)


def test_a_reboot_needs_no_operator(lab: Lab, main_host: str, converged: dict[str, Any]) -> None:
    reboot(lab, main_host)
    assert lab.exec(main_host, ["cat", "/proc/sys/kernel/osrelease"]).stdout.strip() == "7.0.0-31-generic"
    wait_live(lab, main_host)
    assert "Paris" in ask(lab, main_host)


def test_verify_goes_red_without_the_service(lab: Lab, main_host: str, converged: dict[str, Any]) -> None:
    lab.exec(main_host, ["sudo", "systemctl", "stop", "lemond"])
    ran = kit("verify", "-i", str(lab.inventory_path), "-l", main_host, "--json")
    lab.exec(main_host, ["sudo", "systemctl", "start", "lemond"])
    assert ran.rc == 1
    assert host_of(ran, main_host)["status"] == "failed"
