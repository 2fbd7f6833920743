# SPDX-License-Identifier: Apache-2.0
"""The controller's pure parts: validation, secrets, exit codes, extra variables, the resume unit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy import extra_vars, secrets_in_argv, validate
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
    assert bool(validate.check_binding(values)) is refused


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
