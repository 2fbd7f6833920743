# SPDX-License-Identifier: Apache-2.0
"""The command on small playbooks: what a run tells, and how it ends (see cli_kit)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .cli_kit import CHANGES, GPU, HOSTS, INFERENCE, command, document, environment, everything, play, told


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
