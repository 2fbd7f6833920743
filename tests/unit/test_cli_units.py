# SPDX-License-Identifier: Apache-2.0
"""The controller's pure parts: validation, secrets, exit codes, extra variables, the resume unit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy import extra_vars, inventory, resume, secrets_in_argv, validate, vault
from lemonade_deploy.builtin_changes import changes_of_builtin
from lemonade_deploy.errors import UsageError, did_you_mean
from lemonade_deploy.exits import Exit
from lemonade_deploy.remedies import remedy_for
from lemonade_deploy.results import Failure, HostRun, exit_code, parse_budget
from lemonade_deploy.specs import Specs
from lemonade_deploy.validate import Variable

SPECS = Specs(
    {
        "kernel": {"kernel_source": {"type": "str", "choices": ["auto", "keep", "hwe"]}},
        "amdgpu_driver": {
            "amdgpu_driver_repo_version": {"type": "str"},
            "amdgpu_driver_repo_exact": {"type": "bool"},
        },
        "models": {
            "models_wanted": {
                "type": "list",
                "elements": "dict",
                "options": {"name": {"type": "str", "required": True}},
            },
            "models_load_timeout": {"type": "int"},
        },
        "lemonade_server": {
            "lemonade_server_host": {"type": "str"},
            "lemonade_server_api_key": {"type": "str", "no_log": True},
        },
    }
)


def problems(name: str, value: Any, kind: str = "plain") -> list[str]:
    return validate.check([Variable(name, value, kind, "hosts.yml", 7)], SPECS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel_source", "hwe"),
        ("amdgpu_driver_repo_exact", "yes"),
        ("amdgpu_driver_repo_version", "31.20"),
        ("models_load_timeout", "900"),
        ("models_wanted", [{"name": "Qwen3.5-0.8B-FP16-vLLM"}]),
        ("something_else", object()),
        ("kernel_source", None),
    ],
)
def test_good_variables_pass(name: str, value: Any) -> None:
    assert problems(name, value) == []


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("kernel_sorce", "hwe", "Did you mean kernel_source?"),
        ("kernel_source", "hwee", "Did you mean hwe?"),
        ("amdgpu_driver_repo_version", 31.2, "quotes"),
        ("models_load_timeout", "half an hour", "half an hour"),
        ("models_load_timeout", True, "a number is wanted"),
        ("models_wanted", [{"nam": "x"}], "nam"),
        ("models_wanted", "", "a list is wanted"),
        ("lemonade_server_host", ["127.0.0.1"], "a text is wanted"),
    ],
)
def test_bad_variables_name_file_line_and_value(name: str, value: Any, says: str) -> None:
    (problem,) = problems(name, value)
    assert problem.startswith(f"hosts.yml:7: {name}")
    assert says in problem


def test_templates_and_vault_values_are_not_judged_but_their_names_are() -> None:
    assert problems("kernel_source", "{{ wish }}", "template") == []
    assert problems("models_load_timeout", None, "vault") == []
    assert "no such variable" in problems("kernel_x", None, "vault")[0]


def test_a_secret_of_a_wrong_type_is_not_shown() -> None:
    (problem,) = problems("lemonade_server_api_key", {"key": "s3cret"})
    assert "s3cret" not in problem
    (problem,) = problems("lemonade_server_api_kee", "s3cret")
    assert "s3cret" not in problem and "lemonade_server_api_key" in problem


@pytest.mark.parametrize(
    ("bind", "key", "refused"),
    [
        ("127.0.0.1", None, False),
        ("::1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", None, True),
        ("0.0.0.0", Variable("k", ""), True),
        ("0.0.0.0", Variable("k", "x"), False),
        ("0.0.0.0", Variable("k", None, "vault"), False),
        ("192.168.1.4", None, True),
    ],
)
def test_binding_wider_than_loopback_needs_a_key(bind: str, key: Variable | None, refused: bool) -> None:
    values = {validate.BIND_HOST: Variable(validate.BIND_HOST, bind)}
    if key:
        values[validate.API_KEY] = key
    assert bool(validate.check_binding("halo-1", values)) is refused


@pytest.mark.parametrize(
    "argument",
    [
        "lemonade_server_api_key=abc",
        "a=1 hf_token=abc",
        "ansible_become_pass=abc",
        '{"lemonade_server_environment": {"HF_TOKEN": "abc"}}',
        'lemonade_server_environment={"HF_TOKEN": "abc"}',
        "db_password=x",
        "my_secret=x",
        "APIKEY=x",
    ],
)
def test_secrets_in_argv_are_refused_without_being_shown(argument: str) -> None:
    with pytest.raises(UsageError) as raised:
        secrets_in_argv.refuse([argument])
    assert "abc" not in str(raised.value)
    shown = secrets_in_argv.redact(["site.yml", "-e", argument, f"--extra-vars={argument}", f"-e{argument}"])
    assert argument not in " ".join(shown)


@pytest.mark.parametrize(
    "argument",
    [
        "verify_max_tokens=512",
        "@secrets.yml",
        "kernel_source=hwe",
        "amdgpu_driver_repo_key_fingerprint=CA8B",
        "lemonade_server_api_key_file=/etc/key",
        '{"models_wanted": [{"name": "x"}]}',
    ],
)
def test_what_is_no_secret_passes(argument: str) -> None:
    secrets_in_argv.refuse([argument])
    assert secrets_in_argv.redact(["-e", argument]) == ["-e", argument]


def test_a_variable_with_no_log_is_a_secret_whatever_its_name() -> None:
    with pytest.raises(UsageError):
        secrets_in_argv.refuse(["lemonade_server_salt=abc"], ["lemonade_server_salt"])


@pytest.mark.parametrize(
    ("statuses", "check", "budget", "code"),
    [
        (["ok", "changed"], False, 0, Exit.OK),
        (["ok", "changed"], True, 0, Exit.CHANGES),
        (["ok", "skipped"], True, 0, Exit.OK),
        (["ok", "failed"], False, 0, Exit.FAILED),
        (["ok", "failed"], False, 1, Exit.PARTIAL),
        (["failed", "unreachable", "ok"], False, 1, Exit.FAILED),
        (["failed"], False, 5, Exit.FAILED),
        (["reboot-required", "ok"], False, 0, Exit.REBOOT),
        (["reboot-required", "failed"], False, 0, Exit.FAILED),
        ([], False, 0, Exit.OK),
    ],
)
def test_exit_codes(statuses: list[str], check: bool, budget: int, code: Exit) -> None:
    hosts = [_host(number, status) for number, status in enumerate(statuses)]
    assert [host.status for host in hosts] == statuses
    assert exit_code(hosts, check, budget) == code


def _host(number: int, status: str) -> HostRun:
    host = HostRun(f"h{number}", tasks=0 if status == "skipped" else 1)
    host.unreachable = status == "unreachable"
    if status in ("failed", "unreachable"):
        host.failure = Failure("kernel", "task", "message")
    if status == "changed":
        host.add_change({"layer": "kernel", "object": "x", "action": "install"})
    if status == "reboot-required":
        host.reboot_required = ["a new kernel"]
    return host


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("3", 3), ("10%", 2), ("100%", 25), ("0%", 0)])
def test_budget(text: str, number: int) -> None:
    assert parse_budget(text, 25) == number


@pytest.mark.parametrize("text", ["-1", "x", "101%", "-5%", "%", ""])
def test_a_budget_that_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        parse_budget(text, 25)


def test_a_change_is_told_once() -> None:
    host = HostRun("a")
    change = {"layer": "kernel", "object": "linux", "action": "install", "detail": "7.0"}
    assert host.add_change(change) is True
    assert host.add_change({**change, "detail": "again"}) is False
    assert host.public()["changed"] == [{"layer": "kernel", "object": "linux", "action": "install"}]


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("a=1", {"a": "1"}),
        ("a=1 b='two words'", {"a": "1", "b": "two words"}),
        ("p=What is 2+2?", {"p": "What is 2+2?"}),
        ("v=31.20", {"v": "31.20"}),
        ('{"a": [1]}', {"a": [1]}),
        ("a=b=c", {"a": "b=c"}),
    ],
)
def test_extra_variables_reach_ansible_in_a_file(
    argument: str, values: dict[str, Any], tmp_path: Path
) -> None:
    (path,) = extra_vars.prepare([argument], tmp_path, tmp_path).files
    assert yaml.safe_load(path.read_text()) == values
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("argument", ["", "novalue", "1a=2", "@missing.yml", "{broken", "[1]"])
def test_extra_variables_of_no_known_form(argument: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        extra_vars.prepare([argument], tmp_path, tmp_path)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), st.text("ab c=\"'", max_size=8), min_size=1
    )
)
def test_quoted_pairs_come_back(values: dict[str, str]) -> None:
    import shlex

    line = " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
    assert dict(extra_vars._pairs(line)) == values


def test_the_nearest_name() -> None:
    assert did_you_mean("sit.yml", ["site.yml", "doctor.yml"]) == "Did you mean site.yml?"
    assert did_you_mean("zzz", ["site.yml"]) == ""


class TestInventory:
    """Which hosts a run is about."""

    @pytest.fixture(autouse=True)
    def no_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("ANSIBLE_CONFIG", "ANSIBLE_INVENTORY"):
            monkeypatch.delenv(name, raising=False)

    def test_given(self, tmp_path: Path) -> None:
        (tmp_path / "hosts.yml").touch()
        chosen = inventory.select(["hosts.yml", "a,b,"], tmp_path, tmp_path)
        assert chosen.sources == (str(tmp_path / "hosts.yml"), "a,b,")

    def test_named_by_ansible_cfg(self, tmp_path: Path) -> None:
        (tmp_path / "inv").mkdir()
        (tmp_path / "inventory").mkdir()
        (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = inv\n")
        chosen = inventory.select([], tmp_path, tmp_path)
        assert chosen.sources == (str(tmp_path / "inv"),)
        assert "ansible.cfg" in chosen.said

    def test_found_here(self, tmp_path: Path) -> None:
        (tmp_path / "inventory").mkdir()
        assert inventory.select([], tmp_path, tmp_path).sources == (str(tmp_path / "inventory"),)

    def test_this_machine(self, tmp_path: Path) -> None:
        chosen = inventory.select([], tmp_path, tmp_path)
        assert chosen.this_machine
        (host,) = yaml.safe_load(Path(chosen.sources[0]).read_text())["all"]["hosts"].values()
        assert host["ansible_connection"] == "local"
        assert host["vllm_rocm_lock_file"] == str(tmp_path / "lemonade-deploy.lock")

    def test_what_everybody_could_have_put_there_is_not_taken_by_itself(self, tmp_path: Path) -> None:
        (tmp_path / "inventory").touch()
        (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = evil\n")
        tmp_path.chmod(0o777)
        with pytest.raises(UsageError, match="written by everybody"):
            inventory.select([], tmp_path, tmp_path)
        assert inventory.select(["inventory"], tmp_path, tmp_path).sources == (str(tmp_path / "inventory"),)

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"nix\.yml"):
            inventory.select(["nix.yml"], tmp_path, tmp_path)
        (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = gone\n")
        with pytest.raises(UsageError, match="gone"):
            inventory.select([], tmp_path, tmp_path)

    def test_a_broken_ansible_cfg_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "ansible.cfg").write_text("inventory = inv\n")
        with pytest.raises(UsageError, match=r"ansible\.cfg"):
            inventory.select([], tmp_path, tmp_path)


class TestPasswords:
    """Asked once, handed on without argv."""

    def test_vault(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        made = vault.prepare(
            ["prod@prompt", "lab@file"], ["file"], True, tmp_path, tmp_path, lambda prompt: "s3cret"
        )
        assert "s3cret" not in " ".join(made.arguments())
        path = Path(made.ids[0].partition("@")[2])
        assert path.read_text() == "s3cret\n"
        assert path.stat().st_mode & 0o077 == 0
        assert made.ids[1] == f"lab@{tmp_path / 'file'}"
        assert len(made.password_files) == 2

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="nix"):
            vault.prepare([], ["nix"], False, tmp_path, tmp_path)

    def test_ssh_and_sudo(self) -> None:
        made = vault.ask_passwords(True, True, lambda prompt: "s3cret")
        assert made.arguments == ("--ask-pass", "--ask-become-pass")
        assert "s3cret" not in repr(made)
        assert len(made.prompts) == 2


class TestResume:
    """The one-shot unit of --reboot."""

    def test_unit(self) -> None:
        text = resume.unit_text(["site.yml", "-e", 'a="50%" $x', "--reboot"], Path("/srv/my kit"), "root")
        start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
        assert start.endswith(' "-m" "lemonade_deploy" "site.yml" "-e" "a=\\"50%%\\" $$x" "--reboot"')
        assert "Type=oneshot" in text
        assert "WorkingDirectory=/srv/my kit" in text
        assert f"ExecStartPre=+/usr/bin/env systemctl disable --no-reload {resume.UNIT}" in text
        assert f"ExecStopPost=+/usr/bin/env rm -f {resume.UNIT_FOLDER / resume.UNIT}" in text
        assert f"{resume.RESUMED}=1" in text

    def test_systemd_reads_it(self, tmp_path: Path) -> None:
        path = tmp_path / resume.UNIT
        path.write_text(resume.unit_text(["site.yml", "--reboot"], Path("/tmp"), "root"))
        try:
            done = subprocess.run(
                ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return  # no systemd here: the lines above are all that can be checked
        assert resume.UNIT not in done.stderr, done.stderr

    def test_reboot_installs_then_reboots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(resume.RESUMED, raising=False)
        ran: list[list[str]] = []
        resume.reboot(["site.yml", "--reboot"], Path("/tmp"), lambda argv, stdin: ran.append([*argv]))
        assert [argv[:2] for argv in ran] == [
            ["tee", str(resume.UNIT_FOLDER / resume.UNIT)],
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable"],
            ["systemctl", "reboot"],
        ]

    def test_a_failed_reboot_takes_the_unit_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(resume.RESUMED, raising=False)
        ran: list[list[str]] = []

        def run(argv: Any, stdin: str | None) -> None:
            ran.append([*argv])
            if list(argv) == ["systemctl", "reboot"]:
                raise subprocess.CalledProcessError(1, argv)

        with pytest.raises(UsageError):
            resume.reboot(["site.yml"], Path("/tmp"), run)
        assert any(argv[:2] == ["rm", "-f"] and str(resume.UNIT_FOLDER / resume.UNIT) in argv for argv in ran)

    def test_a_resumed_run_does_not_reboot_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(resume.RESUMED, "1")
        resume.reboot(["site.yml"], Path("/tmp"), lambda argv, stdin: pytest.fail("it ran " + " ".join(argv)))

    def test_prompts_after_a_boot_are_refused(self) -> None:
        with pytest.raises(UsageError, match="prompt"):
            resume.check(True)


@pytest.mark.parametrize(
    ("module", "result", "triple"),
    [
        ("ansible.builtin.template", {"dest": "/etc/x"}, ("/etc/x", "write")),
        ("ansible.builtin.file", {"path": "/etc/x", "state": "absent"}, ("/etc/x", "remove")),
        ("ansible.builtin.apt", {"invocation": {"module_args": {"name": ["a=1.2"]}}}, ("a", "install")),
        ("ansible.builtin.systemd", {"name": "lemond", "state": "started"}, ("lemond", "start")),
        ("ansible.builtin.command", {"cmd": ["x"]}, ("the task", "run")),
    ],
)
def test_changes_of_builtin_modules(module: str, result: dict[str, Any], triple: tuple[str, str]) -> None:
    (change,) = changes_of_builtin("role", module, "the task", result)
    assert (change["layer"], change["object"], change["action"]) == ("role", *triple)


def test_remedies_for_the_connection() -> None:
    assert "known_hosts" in remedy_for("Host key verification failed.")
    assert "-K" in remedy_for("Missing sudo password")
    assert remedy_for("something else") == ""


def test_the_environment_turns_host_keys_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from lemonade_deploy.ansible_env import environment

    monkeypatch.delenv("ANSIBLE_HOST_KEY_CHECKING", raising=False)
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    settings = environment(tmp_path, tmp_path)
    assert settings["ANSIBLE_HOST_KEY_CHECKING"] == "True"
    place = settings["ANSIBLE_COLLECTIONS_PATH"].split(":")[0]
    assert os.path.isdir(f"{place}/ansible_collections/lemonade/deploy/roles")
    (tmp_path / "ansible.cfg").write_text("[ssh_connection]\npipelining = False\n")
    assert environment(tmp_path, tmp_path)["ANSIBLE_PIPELINING"] == "False"
