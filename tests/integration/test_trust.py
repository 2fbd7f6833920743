# SPDX-License-Identifier: Apache-2.0
"""verify as a user meets it, and secrets found nowhere but where they belong (light engine)."""

from __future__ import annotations

import json
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from lemonade_deploy.lab import Lab

from .conftest import SERVING as HOST
from .kit import Ran, host_of, kit

pytestmark = pytest.mark.lab

MODEL = "user.SmolLM2-135M"
# Each in two parts, as what looks for them is logged, too.
KEY, TOKEN = ("CANARY", "-key-7f3a9Zq"), ("hf_CANARY", "token41xQ9")
BARE = "it-bare"
ENGINE = "/opt/lemonade-deploy/vllm-rocm/current/bin/vllm-server"


def sh(lab: Lab, script: str, host: str = HOST) -> str:
    """A script as root on the host; it must end well."""
    done = lab.exec(host, ["sudo", "sh", "-ec", script])
    assert done.rc == 0, done.stderr
    return done.stdout


def where(lab: Lab, host: str = HOST) -> list[str]:
    return ["-i", str(lab.inventory_path), "-l", host]


def test_a_green_verify_shows_its_progress(serving: Lab, tmp_path: Path) -> None:
    ran = kit("verify", *where(serving), "--json", "--junit", str(tmp_path / "v.xml"))
    assert ran.rc == 0, ran.stdout + ran.stderr
    tests = host_of(ran, HOST)["tests"]
    assert len(tests) >= 30 and {test["outcome"] for test in tests} <= {"passed", "skipped"}
    assert f" of {len(tests)} tests  " in ran.stderr, "it was silent"
    assert ET.parse(tmp_path / "v.xml").getroot().find("testsuite").get("failures") == "0"  # type: ignore[union-attr]


@pytest.mark.full
def test_a_failure_carries_its_evidence(serving: Lab, tmp_path: Path) -> None:
    sh(serving, "systemctl disable -q lemond")
    ran = kit("verify", *where(serving), "--json", "--junit", str(tmp_path / "v.xml"))
    sh(serving, "systemctl enable -q lemond")
    bad = [test for test in host_of(ran, HOST)["tests"] if test["outcome"] == "failed"]
    assert (ran.rc, [test["name"] for test in bad]) == (1, ["service::service_is_enabled_and_active"])
    assert "(Server)" in bad[0]["evidence"]
    assert "(Server)" in (tmp_path / "v.xml").read_text()


def test_a_host_where_nothing_was_set_up_gets_one_line(serving: Lab) -> None:
    serving.up([BARE], "strix-halo-clean", "light")
    ran = kit("verify", *where(serving, BARE))
    assert ran.rc == 1
    said = [line for line in ran.stdout.splitlines() if " tests  connecting" not in line]  # signs of life
    lines = [line for line in said if "never set up" in line]
    assert len(lines) == 1 and "Run `lemonade-deploy site.yml`" in lines[0], ran.stdout
    assert len(said) <= 5, ran.stdout


@pytest.mark.full
def test_disruptive(serving: Lab) -> None:
    before = sh(serving, "cat /proc/sys/kernel/random/boot_id")
    ran = kit("verify", *where(serving), "--disruptive", "--json")
    tests = host_of(ran, HOST)["tests"]
    assert ran.rc == 0, [test for test in tests if test["outcome"] in ("failed", "error")]
    names = [test["name"] for test in tests]
    assert names.index("disruptive::restart") < names.index("disruptive::reboot")
    assert names[-1].startswith("after_reboot::") and "after_restart::completion::completion" in names
    assert sh(serving, "cat /proc/sys/kernel/random/boot_id") != before


@pytest.fixture
def marked(serving: Lab, tmp_path: Path) -> Iterator[Path]:
    """A file of variables with a key and a token that can be told from everything else; afterwards none."""
    variables = tmp_path / "secret" / "secret.yml"
    variables.parent.mkdir()
    variables.write_text(
        f"lemonade_server_api_key: {''.join(KEY)}\nlemonade_server_hf_token: {''.join(TOKEN)}\n"
        "lemonade_server_host: 0.0.0.0\n"
    )
    yield variables
    sh(serving, f"chmod 755 {ENGINE}")
    back = kit("site.yml", *where(serving), "-t", "lemonade_server,models", "--json")
    assert host_of(back, HOST)["failure"] is None


def everything(lab: Lab, folder: Path, variables: Path) -> list[Ran]:
    """A full run with -vvv and a diff, doctor, a burn test; then a load that fails, and verify of that."""
    short = ["--runs", "3", "--warmup", "0", "--max-tokens", "12", "--concurrency", "2"]
    ran = [
        kit("site.yml", *where(lab), "-vvv", "--diff", "--json", "-e", f"@{variables}"),
        kit("doctor", *where(lab), "--json"),
        kit("bench", *where(lab), "-vvv", "--output", str(folder / "bench"), "--json", *short),
    ]
    assert [one.rc for one in ran] == [0, 0, 0], [one.stderr[-2000:] for one in ran if one.rc]
    # Told with lines of the engine's log and of the journal, which may hold anything.
    sh(lab, f"chmod 644 {ENGINE}; systemctl restart lemond")
    ran.append(kit("site.yml", *where(lab), "-t", "models", "-vvv"))
    ran.append(kit("verify", *where(lab), "-v", "--json", "--junit", str(folder / "verify.xml")))
    assert [one.rc for one in ran[-2:]] == [1, 1]
    return ran


def test_secrets_are_found_nowhere_but_where_they_belong(serving: Lab, marked: Path, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    ran = everything(serving, reports, marked)
    assert "(Server)" in (reports / "verify.xml").read_text(), "a failure without evidence proves little"
    seen = [text for one in ran for text in (one.stdout, one.stderr)]
    seen += [path.read_text() for path in reports.rglob("*") if path.is_file()]
    assert len(seen) == 10 + 4 and sum(map(len, seen)) > 40_000
    seen.append(
        sh(serving, "journalctl --no-pager -o json; ps -eo args; systemctl show lemond; cat /proc/*/cmdline")
    )
    for first, second in (KEY, TOKEN):
        assert not [text[:80] for text in seen if first + second in text]
        looked = "/etc /var/lib /var/log /var/cache /run /tmp /home /root /opt /srv"
        files = sh(serving, f"grep -rlaF {first}'{second}' {looked} 2>/dev/null || true")
        assert files.split() == ["/etc/lemonade-deploy/lemond.env"]
        assert left_here(first + second) == []
    assert sh(serving, "stat -c '%a %U' /etc/lemonade-deploy/lemond.env").split() == ["600", "root"]


def left_here(secret: str) -> list[str]:
    """Files that the kit left on this machine: ansible-runner's artifacts, Ansible's own."""
    folders = [Path.home() / ".ansible"]
    for name in ("lemonade-deploy*", "ansible*", "runner*"):
        folders += Path(tempfile.gettempdir()).glob(name)
    argv = ["grep", "-rlaF", "-e", secret, *(str(folder) for folder in folders)]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()


@pytest.mark.full
def test_requests_of_others_while_verify_runs_do_no_harm(serving: Lab) -> None:
    """Greedy answers may differ while others ask: a warning then, the verdict stays green."""
    told = {"model": MODEL, "messages": [{"role": "user", "content": "Tell a story"}], "max_tokens": 400}
    body = json.dumps(told)
    ask = f"while :; do curl -s -o /dev/null http://127.0.0.1:13305/v1/chat/completions -d '{body}'; done"
    sh(serving, f"cat > /root/crowd <<'END'\n{ask}\nEND\nsystemd-run -q --unit crowd sh /root/crowd")
    ran = kit("verify", *where(serving), "--json")
    sh(serving, "systemctl stop crowd; rm /root/crowd")
    assert ran.rc == 0, [t for t in host_of(ran, HOST)["tests"] if t["outcome"] not in ("passed", "skipped")]
