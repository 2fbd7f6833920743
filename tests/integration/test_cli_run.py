# SPDX-License-Identifier: Apache-2.0
"""The command on small playbooks and this machine (local connections, a temporary folder).

A module beside the playbook returns what it is given, in the keys of our own modules.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import lemonade_deploy
from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.domain.paths import STATE_DIR

from .kit import Ran

SCHEMAS = Path(lemonade_deploy.__file__).parent / "schema"

TOLD = '''#!/usr/bin/python3
"""Returns its argument `result`, also in check mode."""
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"result": {"type": "dict", "required": True}}, supports_check_mode=True)
result = module.params["result"]
if result.pop("failed", False):
    module.fail_json(**result)
module.exit_json(**result)
'''
HOSTS = {"all": {"hosts": {name: {"ansible_connection": "local"} for name in ("a", "b")}}}
CHANGES = [
    {"layer": "kernel", "object": "linux-generic-hwe-24.04", "action": "install", "detail": "7.0.0-31"},
    {"layer": "kernel", "object": "boot entry", "action": "try once", "detail": ""},
]
GPU = {
    "node": 1,
    "gfx": "gfx1151",
    "cu_count": 40,
    "driver": "in-tree",
    "cwsr_size": 19185664,
    "ctl_stack_size": 16384,
    "expected_cwsr_size": 19185664,
    "expected_ctl_stack_size": 16384,
    "cwsr": "ok",
}
INFERENCE = {
    "model": "user.SmolLM2-135M",
    "content": "The answer is 4.",
    "finish_reason": "stop",
    "prompt_tokens": 37,
    "completion_tokens": 12,
    "seconds": 0.7,
    "tokens_per_second": 17.1,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the module, an inventory, and a TMPDIR of its own."""
    for name in ("library", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "library" / "told.py").write_text(TOLD)
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(HOSTS))
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    return {**clean, "TMPDIR": str(folder / "tmp"), "COLUMNS": "200"}


def command(folder: Path, *argv: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-m", "lemonade_deploy", *argv],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(folder),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr + done.stdout
    assert list((folder / "tmp").glob("lemonade-deploy-*")) == [], "the private folder is still there"
    return Ran(done.returncode, done.stdout, done.stderr)


def play(folder: Path, *tasks: dict[str, Any], **more: Any) -> str:
    """Write play.yml with *tasks*; its name."""
    document = [{"hosts": "all", "gather_facts": False, "tasks": list(tasks), **more}]
    (folder / "play.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    return "play.yml"


def told(name: str = "tell", when: str | None = None, **result: Any) -> dict[str, Any]:
    task: dict[str, Any] = {"name": name, "told": {"result": result}}
    return {**task, **({"when": when} if when else {})}


def document(ran: Ran, schema: str = "run") -> dict[str, Any]:
    """The JSON document, valid by its schema; one, and nothing else, on stdout."""
    found: dict[str, Any] = json.loads(ran.stdout)
    jsonschema.validate(found, json.loads((SCHEMAS / f"{schema}.json").read_text()))
    assert found["exit_code"] == ran.rc
    return found


def everything() -> list[dict[str, Any]]:
    facts = {"gpu": [{**GPU, "cwsr": "missing", "driver": "dkms"}], "kernel_running": "6.14.0-37-generic"}
    decision = {"reasons": ["the in-tree driver is right for an APU"]}
    told_facts = {"lemonade_deploy": {"facts": facts, "decision": decision, "findings": []}}
    return [
        told("look", changed=False, ansible_facts=told_facts),
        told("kernel", changed=True, changes=CHANGES),
        told(
            "boot",
            changed=True,
            changes=[],
            rebooted=True,
            kernel="7.0.0-31-generic",
            gpu=[{**GPU, "pci": "x"}],
            bundle={"tag": "vllm1-gfx1151", "path": "/opt/x", "digest": "sha256:1"},
            endpoint="http://127.0.0.1:13305/api/v1",
            load_seconds=61.5,
        ),
        told("ask", changed=False, changes=[], inference=INFERENCE),
    ]


def test_everything_that_modules_tell_is_in_the_document(folder: Path) -> None:
    ran = command(folder, play(folder, *everything()), "-i", "hosts.yml", "-l", "a", "--json")
    found = document(ran)
    assert ran.rc == 0
    assert found["schema"] == "lemonade-deploy/run/1"
    assert list(found["hosts"]) == ["a"]
    assert found["hosts"]["a"] == {
        "status": "changed",
        "changed": [{key: change[key] for key in ("layer", "object", "action")} for change in CHANGES],
        "failure": None,
        "rebooted": True,
        "kernel": "7.0.0-31-generic",
        "gpu": [GPU],
        "bundle": {"tag": "vllm1-gfx1151", "path": "/opt/x", "digest": "sha256:1"},
        "endpoint": "http://127.0.0.1:13305/api/v1",
        "inference": {**INFERENCE, "load_seconds": 61.5},
    }


def test_people_see_the_table_and_the_answer_last(folder: Path) -> None:
    ran = command(folder, play(folder, *everything()), "-i", "hosts.yml", "-l", "a")
    assert ran.rc == 0
    lines = ran.stdout.strip().splitlines()
    assert lines[0] == "play.yml on a: inventory hosts.yml"
    assert lines[-1].strip() == INFERENCE["content"]
    assert "missing → ok" in ran.stdout
    assert "17.1" in ran.stdout
    assert "\x1b" not in ran.stdout


def test_check_exits_2_with_the_plan(folder: Path) -> None:
    ran = command(folder, play(folder, *everything()), "-i", "hosts.yml", "-l", "a", "--check")
    assert ran.rc == 2
    assert "linux-generic-hwe-24.04: install (7.0.0-31)" in ran.stdout
    assert "because the in-tree driver is right for an APU" in ran.stdout
    assert "Nothing was changed" in ran.stdout
    nothing = command(folder, play(folder, told(changed=False, changes=[])), "-i", "hosts.yml", "--check")
    assert nothing.rc == 0
    assert nothing.stdout.splitlines()[-1] == "Nothing would change."


def test_check_writes_nothing_and_diff_shows_the_lines(folder: Path) -> None:
    write = {
        "name": "write",
        "ansible.builtin.copy": {"dest": f"{folder}/out", "content": "hello\n", "mode": "0600"},
    }
    ran = command(folder, play(folder, write), "-i", "hosts.yml", "-l", "a", "--check", "--diff")
    assert ran.rc == 2
    assert "+hello" in ran.stdout
    assert not (folder / "out").exists()


FAIL = told(
    "break",
    when="inventory_hostname == 'b'",
    failed=True,
    msg="no GPU here. Use another box.",
    failure={"layer": "preflight", "message": "no GPU here", "remedy": "Use another box."},
)


@pytest.mark.parametrize(
    ("options", "code"), [([], 1), (["--max-failed", "1"], 3), (["--max-failed", "50%"], 3)]
)
def test_a_host_fails_alone(folder: Path, options: list[str], code: int) -> None:
    ran = command(
        folder, play(folder, FAIL, told(changed=True, changes=CHANGES)), "-i", "hosts.yml", "--json", *options
    )
    hosts = document(ran)["hosts"]
    assert ran.rc == code
    assert hosts["a"]["status"] == "changed"
    assert hosts["b"]["status"] == "failed"
    assert hosts["b"]["failure"] == {
        "layer": "preflight",
        "task": "break",
        "message": "no GPU here",
        "remedy": "Use another box.",
    }
    assert "Use another box." in ran.stderr


def test_an_unreachable_host_counts_as_failed(folder: Path) -> None:
    hosts = {**HOSTS["all"]["hosts"], "gone": {"ansible_host": "127.0.0.9", "ansible_port": 1}}
    (folder / "more.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    ran = command(folder, play(folder, told(changed=False)), "-i", "more.yml", "--json")
    hosts_told = document(ran)["hosts"]
    assert ran.rc == 1
    assert hosts_told["gone"]["status"] == "unreachable"
    assert "sshd" in hosts_told["gone"]["failure"]["remedy"]
    assert hosts_told["a"]["status"] == "ok"


def test_a_rescued_failure_is_none(folder: Path) -> None:
    block = {"block": [told("break", failed=True, msg="x")], "rescue": [told("mend", changed=False)]}
    ran = command(folder, play(folder, block), "-i", "hosts.yml", "-l", "a", "--json")
    assert ran.rc == 0
    assert document(ran)["hosts"]["a"]["status"] == "ok"


def test_a_due_reboot_of_this_machine_exits_4(folder: Path) -> None:
    due = told("boot", changed=False, reboot_required=True, reboot=["a kernel to be booted"], changes=[])
    ran = command(
        folder, play(folder, told(changed=True, changes=CHANGES), due), "-i", "hosts.yml", "-l", "a", "--json"
    )
    host = document(ran)["hosts"]["a"]
    assert ran.rc == 4
    assert (host["status"], host["failure"], len(host["changed"])) == ("reboot-required", None, 2)
    assert "a reboot is due: a kernel to be booted" in ran.stderr
    assert "Reboot this machine, then run the same command again" in ran.stderr


def test_hosts_that_no_task_ran_on_are_skipped(folder: Path) -> None:
    ran = command(folder, play(folder, told(changed=False), hosts="a"), "-i", "hosts.yml", "--json")
    assert [host["status"] for host in document(ran)["hosts"].values()] == ["ok", "skipped"]


def test_tags_choose_layers(folder: Path) -> None:
    first, second = (
        {**told("one", changed=True), "tags": ["one"]},
        {**told("two", changed=True), "tags": ["two"]},
    )
    playbook = play(folder, first, second)
    ran = command(folder, playbook, "-i", "hosts.yml", "-l", "a", "-t", "one", "--json")
    assert [change["object"] for change in document(ran)["hosts"]["a"]["changed"]] == ["one"]
    ran = command(folder, playbook, "-i", "hosts.yml", "-l", "a", "--skip-tags", "one", "--json")
    assert [change["object"] for change in document(ran)["hosts"]["a"]["changed"]] == ["two"]


def test_extra_variables_arrive_and_stay_out_of_argv(folder: Path) -> None:
    script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' > {{ playbook_dir }}/seen; "
    script += "test '{{ word }}' = 'can ary' -a '{{ two }}' = 2"
    (folder / "vars.yml").write_text("two: 2\nlemonade_server_api_key: s3cret-canary\n")
    shell = {"name": "look", "ansible.builtin.shell": script}
    ran = command(
        folder, play(folder, shell), "-i", "hosts.yml", "-l", "a", "-e", "word=can ary", "-e", "@vars.yml"
    )
    assert ran.rc == 0, ran.stdout
    seen = (folder / "seen").read_text()
    assert "ansible-playbook" in seen
    assert seen.count("word=can ary") == 1, "only in our own argv, as typed"
    assert "s3cret-canary" not in seen + ran.stdout + ran.stderr


def test_without_an_inventory_it_is_this_machine_and_says_so(folder: Path) -> None:
    (folder / "hosts.yml").unlink()
    ran = command(folder, play(folder, told(changed=False)))
    assert ran.rc == 0
    assert (
        ran.stdout.splitlines()[0]
        == "play.yml on localhost: inventory this machine (no -i, no inventory here)"
    )


def test_the_inventory_of_ansible_cfg_is_named(folder: Path) -> None:
    (folder / "ansible.cfg").write_text("[defaults]\ninventory = hosts.yml\n")
    ran = command(folder, play(folder, told(changed=False)))
    assert ran.rc == 0
    assert (
        ran.stdout.splitlines()[0] == f"play.yml on a, b: inventory hosts.yml (named by {folder}/ansible.cfg)"
    )


def test_an_encrypted_inventory_needs_its_password(folder: Path) -> None:
    (folder / "group_vars").mkdir()
    (folder / "password").write_text("xyz\n")
    secret = folder / "group_vars" / "all.yml"
    secret.write_text("word: hidden-canary\n")
    vault = [
        str(Path(sys.executable).parent / "ansible-vault"),
        "encrypt",
        "--vault-password-file",
        "password",
        str(secret),
    ]
    subprocess.run(vault, check=True, capture_output=True, cwd=folder, env=environment(folder))
    check = {"name": "check", "ansible.builtin.assert": {"that": "word == 'hidden-canary'", "quiet": True}}
    playbook = play(folder, check)
    without = command(folder, playbook, "-i", "hosts.yml", "--json")
    assert without.rc == 64
    assert "all.yml" in document(without)["error"]["message"]
    assert "--vault-password-file" in document(without)["error"]["remedy"]
    for option in (["--vault-password-file", "password"], ["--vault-id", "it@password"]):
        ran = command(folder, playbook, "-i", "hosts.yml", "-v", *option)
        assert ran.rc == 0, ran.stdout + ran.stderr
        assert "hidden-canary" not in ran.stdout + ran.stderr


USAGE = [
    (["sit.yml"], "Did you mean site.yml?"),
    (["doctro"], "Did you mean doctor?"),
    (["nowhere/x.yml"], "nowhere/x.yml"),
    (["play.yml", "-i", "nix.yml"], "nix.yml"),
    (["play.yml", "-i", "broken.yml"], "broken.yml:2"),
    (["play.yml", "-i", "broken.ini"], "broken.ini:3"),
    (["play.yml", "-i", "hosts.yml", "-l", "zz"], "zz"),
    (["play.yml", "-i", "hosts.yml", "-e", "lemonade_server_api_key=x"], "lemonade_server_api_key"),
    (["play.yml", "-i", "hosts.yml", "-e", "@nix.yml"], "nix.yml"),
    (["play.yml", "-i", "hosts.yml", "-e", "nothing"], "nothing"),
    (["play.yml", "-i", "hosts.yml", "-e", "vllm_rocm_keeep=2"], "Did you mean vllm_rocm_keep?"),
    (["play.yml", "-i", "hosts.yml", "-e", "vllm_rocm_keep=many"], "many"),
    (["play.yml", "-i", "hosts.yml", "--max-failed", "x"], "--max-failed x"),
    (["play.yml", "-i", "hosts.yml", "--frobnicate"], "--frobnicate"),
    (["play.yml", "-i", "hosts.yml", "-f", "0"], "--forks"),
    (["play.yml", "-i", "hosts.yml", "-k"], "SSH password"),
    (["play.yml", "-i", "hosts.yml", "--reboot", "-K"], "prompt"),
    (["broken.yml", "-i", "hosts.yml"], "broken.yml:2"),
    (["badplay.yml", "-i", "hosts.yml"], "'tas' is not a valid attribute"),
    (["run"], "PLAYBOOK"),
]


@pytest.mark.parametrize(("argv", "says"), USAGE, ids=[" ".join(argv) for argv, _ in USAGE])
def test_mistakes_exit_64_before_any_host_is_touched(
    folder: Path,
    argv: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    touch = {"ansible.builtin.copy": {"dest": f"{folder}/touched", "content": "", "mode": "0600"}}
    play(folder, touch)
    (folder / "broken.yml").write_text("all:\n\t- x\n")
    (folder / "broken.ini").write_text("[x]\na\n[x:varz]\nb\n")
    (folder / "badplay.yml").write_text("- hosts: all\n  tas: []\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["lemonade-deploy", *argv, "--json"])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code = dispatch([*argv, "--json"])
    ran = Ran(code, *capsys.readouterr())
    error = document(ran)["error"]
    assert ran.rc == 64
    assert says in error["message"] + error["remedy"]
    assert says in ran.stderr
    assert not (folder / "touched").exists()


def test_a_variable_in_the_inventory_is_named_with_file_and_line(folder: Path) -> None:
    hosts = "all:\n  hosts:\n    a:\n      ansible_connection: local\n      vllm_rocm_keeep: 2\n"
    (folder / "typo.yml").write_text(hosts)
    ran = command(folder, play(folder, told(changed=False)), "-i", "typo.yml")
    assert ran.rc == 64
    assert f"{folder}/typo.yml:5: vllm_rocm_keeep (value 2)" in ran.stderr
    assert "Did you mean vllm_rocm_keep?" in ran.stderr


def test_a_mistake_of_doctors_has_doctors_schema(folder: Path) -> None:
    ran = command(folder, "doctor", "-i", "nix.yml", "--json")
    assert ran.rc == 64
    assert document(ran, "doctor")["schema"] == "lemonade-deploy/doctor/1"


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(folder: Path) -> None:
    playbook = play(folder, {"name": "long", "ansible.builtin.command": {"argv": ["sleep", "97.31"]}})
    process = subprocess.Popen(
        [sys.executable, "-m", "lemonade_deploy", playbook, "-i", "hosts.yml", "-l", "a", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder),
        cwd=folder,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not sleepers() and time.monotonic() < deadline:
        time.sleep(0.1)  # until the task's program runs
    assert sleepers()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=40)
    ran = Ran(process.returncode, stdout, stderr)
    assert ran.rc == 1, stderr
    host = document(ran)["hosts"]["a"]
    assert (host["status"], host["failure"]["message"]) == ("failed", "interrupted by the user")
    assert "The same command goes on from here" in stderr
    assert "Traceback" not in stderr
    assert list((folder / "tmp").glob("lemonade-deploy-*")) == []
    assert not any(b"ansible-playbook" in line and str(folder).encode() in line for line in command_lines())


def test_a_reader_that_goes_away_does_not_stop_the_run(folder: Path) -> None:
    write = {
        "name": "write",
        "ansible.builtin.copy": {"dest": f"{folder}/out", "content": "x", "mode": "0600"},
    }
    playbook = play(folder, told(changed=True, changes=CHANGES), write)
    line = f"{sys.executable} -m lemonade_deploy {playbook} -i hosts.yml -l a | head -n 1"
    done = subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        env=environment(folder),
        cwd=folder,
        timeout=120,
        check=False,
    )
    assert done.stdout.startswith("play.yml on a")
    assert done.stderr == ""
    assert (folder / "out").exists()


def command_lines() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue  # it has just ended
    return found


def sleepers() -> list[bytes]:
    return [line for line in command_lines() if line.startswith(b"sleep\x0097.31")]


def test_nothing_of_ours_is_written_outside(folder: Path) -> None:
    assert not STATE_DIR.startswith(str(folder))
    existed = Path(STATE_DIR).exists()
    command(folder, play(folder, told(changed=False)), "-i", "hosts.yml")
    assert Path(STATE_DIR).exists() is existed
