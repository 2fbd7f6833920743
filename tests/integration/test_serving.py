# SPDX-License-Identifier: Apache-2.0
"""The serving layer broken in ways that happen, with the light engine: told, put right, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lemonade_deploy.lab import Lab

from .conftest import SERVING as HOST
from .kit import changed, host_of, kit

pytestmark = [pytest.mark.lab, pytest.mark.full]

TAGS = "preflight,lemonade_server,models,verify"
RESTARTED = ("lemonade_server", "service lemond", "restart")
BUNDLES = "/opt/lemonade-deploy/vllm-rocm"


def run(lab: Lab, *more: str, tags: str = TAGS) -> dict[str, Any]:
    """One run of the serving layers; the host's part of the document."""
    ran = kit("site.yml", "-i", str(lab.inventory_path), "-l", HOST, "-t", tags, "--json", *more)
    return host_of(ran, HOST)


def sh(lab: Lab, script: str) -> str:
    """A script as root on the host; it must end well."""
    done = lab.exec(HOST, ["sudo", "sh", "-ec", script])
    assert done.rc == 0, done.stderr
    return done.stdout


def red(lab: Lab) -> set[str]:
    """Names of the tests of ``verify`` that fail."""
    ran = kit("verify", "-i", str(lab.inventory_path), "-l", HOST, "--json")
    tests = host_of(ran, HOST)["tests"]
    assert len(tests) >= 30
    return {test["name"] for test in tests if test["outcome"] in ("failed", "error")}


@pytest.fixture(scope="module")
def served(serving: Lab) -> Lab:
    """A lab whose host serves."""
    return serving


def test_the_suite_is_green(served: Lab) -> None:
    assert red(served) == set()


def test_the_package_never_ran_lemond_with_its_own_settings(served: Lab) -> None:
    """The package's start would broadcast; the only start in the journal is ours."""
    journal = sh(served, "journalctl -u lemond -o cat --no-pager")
    assert "Broadcasting disabled" in journal
    assert journal.count("Starting HTTP server") == journal.count("Broadcasting disabled")


def test_drop_ins_of_the_user_survive(served: Lab) -> None:
    folder = "/etc/systemd/system/lemond.service.d"
    sh(
        served,
        f"mkdir -p {folder}; printf '[Service]\\nNice=3\\n' > {folder}/mine.conf; systemctl daemon-reload",
    )
    assert run(served, "-e", "lemonade_server_ctx_size=2048")["failure"] is None
    assert sh(served, "systemctl show -p Nice --value lemond").strip() == "3"
    sh(served, f"rm -r {folder}; systemctl daemon-reload")
    assert changed(run(served)) == {("lemonade_server", "lemond settings", "write"), RESTARTED}


def test_a_disabled_service_and_open_secrets_are_seen_and_put_right(served: Lab) -> None:
    sh(served, "systemctl disable -q lemond; echo X=1 > /etc/lemonade-deploy/lemond.env")
    assert {"service::service_is_enabled_and_active", "service::secrets_are_for_root_only"} <= red(served)
    assert changed(run(served)) == {("lemonade_server", "lemond secrets", "remove"), RESTARTED}
    assert red(served) == set()


def test_an_override_in_config_json_is_seen(served: Lab) -> None:
    sh(served, "lemonade config set ctx_size=2222 >/dev/null")
    assert red(served) == {"endpoint::settings_are_in_effect"}
    ran = kit("doctor", "-i", str(served.inventory_path), "-l", HOST, "--json")
    assert "config-overridden" in {finding["id"] for finding in host_of(ran, HOST)["findings"]}
    sh(served, "rm /var/lib/lemonade/config.json; systemctl restart lemond")


def test_an_engine_of_another_bundle_is_seen_and_replaced(served: Lab) -> None:
    run(served)  # so that an engine of the present bundle is loaded
    sh(served, f'cd {BUNDLES}; cp -a "$(readlink current)" vllm9-other; ln -sfn vllm9-other current')
    assert red(served) == {"engine::the_engine_runs_from_the_active_bundle"}
    assert (run(served)["changed"], red(served)) == ([], set())
    sh(
        served,
        f'cd {BUNDLES}; ln -sfn "$(ls -d vllm0*)" current; systemctl restart lemond; rm -r vllm9-other',
    )


def test_a_run_that_died_before_the_restart_is_taken_up(served: Lab) -> None:
    sh(served, "touch /var/lib/lemonade-deploy/lemond-restart-due")
    assert changed(run(served)) == {RESTARTED}
    assert run(served)["changed"] == []


def test_a_load_that_fails_is_told_by_its_cause(served: Lab) -> None:
    sh(served, f"mv {BUNDLES}/current/bin/vllm-server /root/; systemctl restart lemond")
    failure = run(served)["failure"]
    assert failure["layer"] == "models"
    assert "vllm-server: not found" in failure["message"]
    assert "within timeout" not in failure["message"]
    sh(served, f"mv /root/vllm-server {BUNDLES}/current/bin/")


def test_a_name_of_an_older_lemonade_gets_a_suggestion(served: Lab) -> None:
    wanted = json.dumps({"models_wanted": [{"name": "Qwen3.5-0.8B-vLLM"}]})
    failure = run(served, "-e", wanted)["failure"]
    assert "Did you mean Qwen3.5-0.8B-FP16-vLLM?" in failure["message"]


def test_a_taken_port_is_named_with_its_holder(served: Lab) -> None:
    program = "import socket,time; s=socket.create_server(('127.0.0.1',14000)); time.sleep(600)"
    sh(served, f'systemd-run -q --unit squatter --uid deploy python3 -c "{program}"')
    failure = run(served, "-e", "lemonade_server_port=14000")["failure"]
    assert "Port 14000 is taken by" in failure["message"]
    assert "squatter.service" in failure["message"]
    sh(served, "systemctl stop squatter")
    assert RESTARTED in changed(run(served))
