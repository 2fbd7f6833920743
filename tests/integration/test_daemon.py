# SPDX-License-Identifier: Apache-2.0
"""vLLM itself as the daemon, on the light host that serves: there and back, sealed off, with the GPU."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.lab import Lab

from .conftest import SERVING as HOST
from .kit import changed, host_of, kit

pytestmark = pytest.mark.lab

TAGS = "preflight,lemonade_server,models,verify"
LIMIT = 2.5  # of systemd-analyze security; Debian's own unit of lemond has 7.6
UNIT = "lemonade-vllm"
BUNDLES = "/opt/lemonade-deploy/vllm-rocm"
VLLM = ("-e", "lemonade_server_daemon=vllm")
MAKE = ("-e", "lemonade_server_api_key_generate=true", "-e", "lemonade_server_host=0.0.0.0")
KEY = "sed -n 's/^VLLM_API_KEY=\"\\(.*\\)\"$/\\1/p' /etc/lemonade-deploy/lemond.env"
REAL = os.environ.get("LEMONADE_TEST_ENGINE") == "vllm"
# The light engine is llama.cpp's server, which lists its models to anyone.
LISTED = {"endpoint::strangers_are_kept_out", "endpoint::no_stranger_reads_where_a_key_is_set"}
LISTENING = "timeout 90 sh -c 'until curl -sf http://127.0.0.1:13305/health; do sleep 0.2; done'"
# Processes of a bundle.
LEFT = f"""for p in /proc/[0-9]*; do case $(readlink $p/exe) in {BUNDLES}/*) echo $p;; esac; done"""


def run(lab: Lab, *more: str, tags: str = TAGS) -> dict[str, Any]:
    """One run of the serving layers; the host's part of the document."""
    return host_of(
        kit("site.yml", "-i", str(lab.inventory_path), "-l", HOST, "-t", tags, "--json", *more), HOST
    )


def sh(lab: Lab, script: str) -> str:
    """A script as root on the host; it must end well."""
    done = lab.exec(HOST, ["sudo", "sh", "-ec", script])
    assert done.rc == 0, done.stdout + done.stderr
    return done.stdout


def red(lab: Lab) -> set[str]:
    """Names of the tests of ``verify`` that fail."""
    ran = kit("verify", "-i", str(lab.inventory_path), "-l", HOST, "--json")
    tests = host_of(ran, HOST)["tests"]
    assert len(tests) >= 30
    failed = [test for test in tests if test["outcome"] in ("failed", "error")]
    print(*(f"{test['name']}: {test['message']}" for test in failed), sep="\n")  # shown where the test fails
    return {test["name"] for test in failed}


def exposure(lab: Lab, unit: str) -> float:
    """systemd's measure of a unit on the host."""
    told = sh(lab, f"systemd-analyze security --offline=true /etc/systemd/system/{unit}.service")
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert found, told
    return float(found[1])


@contextmanager
def drop_in(lab: Lab, unit: str, text: str) -> Iterator[None]:
    """A drop-in of the user for a while; the service is as before afterwards."""
    folder = f"/etc/systemd/system/{unit}.service.d"
    sh(lab, f"mkdir -p {folder}; printf %b '{text}' > {folder}/test.conf; systemctl daemon-reload")
    try:
        yield
    finally:
        sh(
            lab,
            f"rm -r {folder}; systemctl daemon-reload; systemctl reset-failed {unit}; "
            f"systemctl restart {unit}",
        )


@pytest.fixture(scope="module")
def vllm(serving: Lab) -> Iterator[Lab]:
    """The host with vLLM as its daemon; lemond serves again afterwards."""
    predicted = run(serving, *VLLM, "-e", "lemonade_server_hardening=strict", "--check")
    host = run(serving, *VLLM, "-e", "lemonade_server_hardening=strict")
    assert host["failure"] is None, host["failure"]
    assert changed(host) == changed(predicted)
    assert changed(host) >= {
        ("lemonade_server", "service lemond", "stop"),
        ("lemonade_server", "service vllm", "start"),
    }
    assert host["inference"]["completion_tokens"] > 0
    yield serving
    back = run(serving)
    assert back["failure"] is None, back["failure"]
    assert changed(back) >= {
        ("lemonade_server", "service vllm", "remove"),
        ("lemonade_server", "service lemond", "start"),
    }


def test_strict_is_sealed_off_and_answers(vllm: Lab) -> None:
    assert exposure(vllm, UNIT) <= LIMIT


def test_compat_is_sealed_off_and_answers_and_a_second_run_changes_nothing(vllm: Lab) -> None:
    host = run(vllm, *VLLM)
    assert host["inference"]["completion_tokens"] > 0
    assert exposure(vllm, UNIT) <= LIMIT
    assert run(vllm, *VLLM)["changed"] == []


def test_verify_is_the_same_suite(vllm: Lab) -> None:
    assert red(vllm) == set()


def test_without_its_class_the_gpu_is_refused(vllm: Lab) -> None:
    """The stand-in for /dev/kfd is none of the devices that systemd leaves open in any case."""
    without = "[Service]\\nDeviceAllow=\\nDeviceAllow=char-drm rw\\n"
    with drop_in(vllm, UNIT, without):
        began = sh(vllm, f"date +%s; ! systemctl restart {UNIT}").strip()
        told = sh(vllm, f"journalctl -u {UNIT} --since @{began} -o cat --no-pager")
        assert "gpu-check: lemonade cannot open /dev/kfd" in told
    # Where nothing looks before the start, verify does.
    with drop_in(vllm, UNIT, without + "ExecStartPre=\\n"):
        sh(vllm, f"systemctl restart {UNIT}; {LISTENING}")
        assert red(vllm) == {"service::the_running_service_may_open_the_gpu"}


@pytest.mark.full
def test_a_driver_that_comes_late_is_found_by_the_next_try(vllm: Lab) -> None:
    """systemd looks the class up when the unit starts: one that has no name yet allows nothing."""
    told = sh(
        vllm,
        f"""grep -v kfd /proc/devices > /run/late; mount --bind /run/late /proc/devices
        systemctl restart {UNIT} && exit 1
        umount /proc/devices
        until systemctl is-active -q {UNIT}; do sleep 0.2; done
        journalctl -u {UNIT} -n 40 -o cat --no-pager""",
    )
    assert "gpu-check: lemonade cannot open /dev/kfd" in told


def test_stopping_leaves_no_process(vllm: Lab) -> None:
    assert sh(vllm, LEFT).split()
    assert sh(vllm, f"systemctl stop {UNIT}; {LEFT}").split() == []
    sh(vllm, f"systemctl reset-failed {UNIT}; systemctl start {UNIT}; {LISTENING}")


@pytest.mark.full
def test_offline_needs_no_name_server_and_says_what_is_missing(vllm: Lab) -> None:
    offline = ("-e", "lemonade_server_offline=true")
    assert run(vllm, *offline)["failure"] is None  # whatever the tests before have left
    sh(vllm, "cp /etc/hosts /root/")
    try:
        sh(vllm, "grep 127.0 /root/hosts > /etc/hosts")
        sh(vllm, f"systemctl reset-failed {UNIT}; systemctl restart {UNIT}; {LISTENING}")
        assert run(vllm, *offline)["changed"] == []
        wanted = {"models_wanted": [{"name": "user.Other", "checkpoint": "Org/Other"}]}
        failure = run(vllm, *offline, "-e", json.dumps(wanted))["failure"]
        assert "Org/Other) is not on the host" in failure["message"]
        failure = run(vllm, *offline, "-e", "lemonade_server_daemon=lemond")["failure"]
        assert "asks huggingface.co on every load" in failure["message"]
    finally:
        sh(vllm, "cp /root/hosts /etc/hosts")


@pytest.mark.full
def test_a_folder_on_the_host_is_served(vllm: Lab) -> None:
    sh(
        vllm,
        "mkdir -p /srv/models/smol; cd /var/cache/huggingface/hub/models--*/snapshots/*/; "
        "cp -L * /srv/models/smol/; chmod -R a+rX /srv/models",
    )
    wanted = {"models_wanted": [{"name": "user.Folder", "checkpoint": "/srv/models/smol"}]}
    host = run(vllm, *VLLM, "-e", json.dumps(wanted))
    assert (host["failure"], host["inference"]["model"]) == (None, "user.Folder")
    assert run(vllm, *VLLM)["failure"] is None


@pytest.mark.full
def test_a_model_that_does_not_load_is_told_by_its_cause(vllm: Lab) -> None:
    sh(vllm, f"mv {BUNDLES}/current/bin/vllm-server /root/; systemctl stop {UNIT}")
    failure = run(vllm, *VLLM)["failure"]
    sh(vllm, f"mv /root/vllm-server {BUNDLES}/current/bin/")
    assert "vllm-server" in failure["message"]
    assert "not found" in failure["message"] or "No such file" in failure["message"]
    assert run(vllm, *VLLM)["failure"] is None


@pytest.mark.full
def test_another_bundle_takes_effect_at_once_and_rollback_goes_back(vllm: Lab) -> None:
    sh(vllm, f'cd {BUNDLES}; cp -a "$(readlink current)" vllm9-other; ln -sfn vllm9-other current')
    try:
        assert "engine::the_engine_runs_from_the_active_bundle" in red(vllm)
        host = host_of(
            kit("rollback", "--bundle", "-i", str(vllm.inventory_path), "-l", HOST, "--json"), HOST
        )
        assert changed(host) == {
            ("vllm_rocm", "current bundle", "link"),
            ("vllm_rocm", "service vllm", "restart"),
        }
        assert red(vllm) == set()
    finally:
        sh(vllm, f'cd {BUNDLES}; ln -sfn "$(ls -d vllm0*)" current; rm -r vllm9-other')


def answered(lab: Lab, *options: str) -> str:
    """HTTP status of a completion without any content; *options* are curl's, in the host's shell."""
    url = "http://127.0.0.1:13305/v1/chat/completions"
    form = "-s -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' -d '{}'"
    return sh(lab, f"curl {form} {' '.join(options)} {url}").strip()


def test_a_made_key_is_demanded_and_shown_nowhere(vllm: Lab) -> None:
    base = ("site.yml", "-i", str(vllm.inventory_path), "-l", HOST, "-t", TAGS, *VLLM, *MAKE)
    ran = kit(*base, "-vvv", "--diff")
    assert ran.rc == 0, ran.stdout + ran.stderr
    assert answered(vllm) == "401"
    assert answered(vllm, "-H", f'"Authorization: Bearer $({KEY})"') in ("400", "422", "500")
    key = sh(vllm, KEY).strip()
    assert len(key) >= 43
    told = sh(vllm, "journalctl --no-pager -o json; ps -eo args; cat /etc/systemd/system/*.service")
    assert not [text for text in (ran.stdout, ran.stderr, told) if key in text]
    assert run(vllm, *VLLM, *MAKE)["changed"] == []
    assert ("lemonade_server", "lemond secrets", "remove") in changed(run(vllm, *VLLM))


@pytest.mark.full
def test_verify_knows_the_key_and_a_removed_one_is_made_anew(vllm: Lab, tmp_path: Path) -> None:
    assert run(vllm, *VLLM, *MAKE)["failure"] is None
    junit = tmp_path / "j.xml"
    ran = kit("verify", "-i", str(vllm.inventory_path), "-l", HOST, "--json", "--junit", str(junit))
    tests = host_of(ran, HOST)["tests"]
    failed = {test["name"] for test in tests if test["outcome"] in ("failed", "error")}
    assert failed == (set() if REAL else LISTED)
    key = sh(vllm, KEY).strip()
    assert not [text for text in (ran.stdout, ran.stderr, junit.read_text()) if key in text]
    sh(vllm, "rm /etc/lemonade-deploy/lemond.env")
    assert ("lemonade_server", "service vllm", "restart") in changed(run(vllm, *VLLM, *MAKE))
    assert sh(vllm, KEY).strip() not in ("", key)
    assert run(vllm, *VLLM)["failure"] is None


@pytest.mark.full
def test_a_daemon_that_hangs_is_restarted(vllm: Lab) -> None:
    start = sh(vllm, f"systemctl show -p InvocationID {UNIT}")
    look = "systemctl start lemonade-deploy-watchdog"
    sh(vllm, f"systemctl stop lemonade-deploy-watchdog.timer; {look}")
    sh(vllm, f"kill -STOP $(systemctl show -p MainPID --value {UNIT}); {look}; {look}")
    assert sh(vllm, f"systemctl show -p InvocationID {UNIT}") == start
    sh(vllm, f"{look}; systemctl start lemonade-deploy-watchdog.timer")
    assert sh(vllm, f"systemctl show -p InvocationID {UNIT}") != start
    assert "does nothing" in sh(vllm, "journalctl -u lemonade-deploy-watchdog -o cat --no-pager -n 5")
