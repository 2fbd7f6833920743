# SPDX-License-Identifier: Apache-2.0
"""The serving layer broken in ways that happen, with the light engine: told, put right, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lemonade_deploy.lab import Lab

from .conftest import SERVING as HOST
from .kit import changed, host_of, kit

pytestmark = [pytest.mark.lab, pytest.mark.full]

TAGS = "preflight,lemonade_server,models,verify"
RESTARTED = ("lemonade_server", "service lemond", "restart")
BUNDLES = "/opt/lemonade-deploy/vllm-rocm"
# Active is not yet listening.
RESTART = (
    "systemctl restart lemond; "
    "timeout 90 sh -c 'until curl -sf http://127.0.0.1:13305/live; do sleep 0.2; done' >/dev/null"
)


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
    failed = [test for test in tests if test["outcome"] in ("failed", "error")]
    print(*(f"{test['name']}: {test['message']}" for test in failed), sep="\n")  # shown where the test fails
    return {test["name"] for test in failed}


@contextmanager
def undone(lab: Lab, script: str) -> Iterator[None]:
    """What a test plants goes away again, whatever it says: the next one starts from a host that serves."""
    try:
        yield
    finally:
        sh(lab, script)


@pytest.fixture
def served(serving: Lab) -> Lab:
    """The lab whose host serves."""
    return serving


def test_the_suite_is_green(served: Lab) -> None:
    assert red(served) == set()


def test_the_package_never_ran_lemond_with_its_own_settings(served: Lab) -> None:
    """The package's start would broadcast; the only start in the journal is ours."""
    journal = sh(served, "journalctl -u lemond -o cat --no-pager")
    starts = journal.count("Started lemond.service")  # systemd's own line; lemond's threads mix theirs
    assert starts > 0
    assert journal.count("Broadcasting disabled") == starts


def test_drop_ins_of_the_user_survive(served: Lab) -> None:
    folder = "/etc/systemd/system/lemond.service.d"
    plant = f"printf '[Service]\\nNice=3\\n' > {folder}/mine.conf; systemctl daemon-reload"
    with undone(served, f"rm -r {folder}; systemctl daemon-reload"):
        sh(served, f"mkdir -p {folder}; {plant}")
        assert run(served, "-e", "lemonade_server_ctx_size=2048")["failure"] is None
        assert sh(served, "systemctl show -p Nice --value lemond").strip() == "3"
    assert changed(run(served)) == {("lemonade_server", "lemond settings", "write"), RESTARTED}


def test_a_disabled_service_and_open_secrets_are_seen_and_put_right(served: Lab) -> None:
    with undone(served, "rm -f /etc/lemonade-deploy/lemond.env; systemctl enable -q lemond"):
        sh(served, "systemctl disable -q lemond; echo X=1 > /etc/lemonade-deploy/lemond.env")
        assert {"service::service_is_enabled_and_active", "service::secrets_are_for_root_only"} <= red(served)
        assert changed(run(served)) == {("lemonade_server", "lemond secrets", "remove"), RESTARTED}
    assert red(served) == set()


def test_an_override_in_config_json_is_seen(served: Lab) -> None:
    with undone(served, f"rm -f /var/lib/lemonade/config.json; {RESTART}"):
        sh(served, "lemonade config set ctx_size=2222 >/dev/null")
        assert red(served) == {"endpoint::settings_are_in_effect"}
        ran = kit("doctor", "-i", str(served.inventory_path), "-l", HOST, "--json")
        assert "config-overridden" in {finding["id"] for finding in host_of(ran, HOST)["findings"]}


def test_an_engine_of_another_bundle_is_seen_and_replaced(served: Lab) -> None:
    run(served)  # so that an engine of the present bundle is loaded
    back = f'cd {BUNDLES}; ln -sfn "$(ls -d vllm0*)" current; {RESTART}; rm -rf vllm9-other'
    with undone(served, back):
        sh(served, f'cd {BUNDLES}; cp -a "$(readlink current)" vllm9-other; ln -sfn vllm9-other current')
        assert red(served) == {
            "engine::the_active_bundle_is_the_wanted_release",
            "engine::the_engine_runs_from_the_active_bundle",
        }
        assert run(served)["changed"] == []
        assert red(served) == {"engine::the_active_bundle_is_the_wanted_release"}


def test_a_run_that_died_before_the_restart_is_taken_up(served: Lab) -> None:
    sh(served, "touch /var/lib/lemonade-deploy/lemond-restart-due")
    assert changed(run(served)) == {RESTARTED}
    assert run(served)["changed"] == []


def test_a_load_that_fails_is_told_by_its_cause(served: Lab) -> None:
    with undone(served, f"mv /root/vllm-server {BUNDLES}/current/bin/; {RESTART}"):
        sh(served, f"mv {BUNDLES}/current/bin/vllm-server /root/; {RESTART}")
        failure = run(served)["failure"]
    assert failure["layer"] == "models"
    assert "vllm-server: not found" in failure["message"]
    assert "within timeout" not in failure["message"]


def test_a_name_of_an_older_lemonade_gets_a_suggestion(served: Lab) -> None:
    wanted = json.dumps({"models_wanted": [{"name": "Qwen3.5-0.8B-vLLM"}]})
    failure = run(served, "-e", wanted)["failure"]
    assert "Did you mean Qwen3.5-0.8B-FP16-vLLM?" in failure["message"]


def test_a_taken_port_is_named_with_its_holder(served: Lab) -> None:
    program = "import socket,time; s=socket.create_server(('127.0.0.1',14000)); time.sleep(600)"
    with undone(served, "systemctl stop squatter"):
        sh(served, f'systemd-run -q --unit squatter --uid deploy python3 -c "{program}"')
        failure = run(served, "-e", "lemonade_server_port=14000")["failure"]
    assert "Port 14000 is taken by" in failure["message"]
    assert "squatter.service" in failure["message"]
    # The run finds lemond waiting for its next try, at it, or given up by systemd.
    assert changed(run(served)) & {RESTARTED, ("lemonade_server", "service lemond", "start")}
    assert red(served) == set()


def test_state_of_an_older_lemond_is_kept(served: Lab) -> None:
    """Own models lie where 11.7 had them; the lemond of today finds them, and nothing is downloaded again."""
    old = "/var/lib/lemonade/.cache/lemonade"
    before = sh(served, "cat /var/lib/lemonade/user_models.json")
    sh(
        served,
        f"""systemctl stop lemond; mkdir -p {old}/bin/llamacpp/cpu
        mv /var/lib/lemonade/*.json {old}/; echo b1 > {old}/bin/llamacpp/cpu/version.txt
        chown -R lemonade:lemonade {old}""",
    )
    predicted = changed(run(served, "--check"))
    host = run(served)
    assert changed(host) == predicted
    assert changed(host) == {
        ("lemonade_server", "state of an older lemond", "move"),
        ("lemonade_server", "service lemond", "start"),
    }
    assert sh(served, "cat /var/lib/lemonade/user_models.json") == before
    assert sh(served, "cat /var/cache/lemonade/bin/llamacpp/cpu/version.txt") == "b1\n"
    sh(served, f"rm -r /var/cache/lemonade/bin/llamacpp; mkdir {old}; echo '{{}}' > {old}/user_models.json")
    with undone(served, f"rm -r {old}"):
        failure = run(served)["failure"]
    assert "user_models.json differ" in failure["message"]


@pytest.mark.parametrize("source", ["distro", "auto"])
def test_the_hosts_own_archive_is_enough(served: Lab, source: str) -> None:
    """A host whose own apt sources have the package gets no source of ours."""
    ours, own = "/etc/apt/sources.list.d/lemonade-deploy-lemonade.sources", "/root/own.sources"
    key, own_key = "/etc/apt/keyrings/lemonade-deploy-lemonade.asc", "/etc/apt/keyrings/own.asc"
    sh(
        served,
        f"""[ -e {own} ] || {{ cp {key} /root/own.asc; sed 's,{key},{own_key},' {ours} > {own}; }}
        systemctl stop lemond; apt-get -y -q purge lemonade-server; rm -f {ours} {key}
        cp /root/own.asc {own_key}; cp {own} /etc/apt/sources.list.d/; apt-get -q update""",
    )
    with undone(served, f"rm /etc/apt/sources.list.d/own.sources {own_key}"):
        host = run(served, "-e", f"lemonade_server_source={source}")
        assert host["failure"] is None, host["failure"]
        assert ("lemonade_server", "package lemonade-server", "install") in changed(host)
        assert ("lemonade_server", "apt source lemonade", "write") not in changed(host)
        sh(served, f"test ! -e {ours}")
        assert run(served, "-e", f"lemonade_server_source={source}")["changed"] == []


def test_a_built_lemond_by_its_path(served: Lab) -> None:
    with undone(served, f"rm -rf /opt/branch; {RESTART}"):
        sh(served, "mkdir /opt/branch; cp /usr/bin/lemond /opt/branch/")
        host = run(served, "-e", "lemonade_server_binary=/opt/branch/lemond")
        assert changed(host) == {("lemonade_server", "unit lemond.service", "write"), RESTARTED}
        program = sh(served, "readlink /proc/$(systemctl show -p MainPID --value lemond)/exe")
        assert program.strip() == "/opt/branch/lemond"
        assert changed(run(served)) == {("lemonade_server", "unit lemond.service", "write"), RESTARTED}
