# SPDX-License-Identifier: Apache-2.0
"""The command on small playbooks: mistakes, stops, and readers that go away (see cli_kit)."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.domain.paths import STATE_DIR

from .cli_kit import CHANGES, command, document, environment, play, told
from .kit import Ran

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


@contextmanager
def sleeping(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command in the middle of a task."""
    playbook = play(folder, {"name": "long", "ansible.builtin.command": {"argv": ["sleep", "97.31"]}})
    with subprocess.Popen(
        [sys.executable, "-m", "lemonade_deploy", playbook, "-i", "hosts.yml", "-l", "a", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder),
        cwd=folder,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not sleepers() and time.monotonic() < deadline:
            time.sleep(0.1)  # until the task's program runs
        assert sleepers()
        yield process


def playing(folder: Path) -> bool:
    """Whether an ansible-playbook runs for *folder*."""
    return any(b"ansible-playbook" in line and str(folder).encode() in line for line in command_lines())


def test_who_kills_the_command_leaves_no_ansible_behind(folder: Path) -> None:
    with sleeping(folder) as process:
        assert playing(folder)
        process.kill()
        deadline = time.monotonic() + 60
        while (playing(folder) or sleepers()) and time.monotonic() < deadline:
            time.sleep(0.1)  # until the signal has gone through
        assert not playing(folder)
        assert not sleepers()


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(folder: Path) -> None:
    with sleeping(folder) as process:
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=40)
    ran = Ran(process.returncode, stdout, stderr)
    assert ran.rc == 1, stderr
    host = document(ran)["hosts"]["a"]
    assert (host["status"], host["failure"]["message"]) == ("failed", "interrupted by the user")
    assert "The same command goes on from here" in stderr
    assert "Traceback" not in stderr
    assert list((folder / "tmp").glob("lemonade-deploy-*")) == []
    assert not playing(folder)


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
