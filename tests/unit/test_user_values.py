# SPDX-License-Identifier: Apache-2.0
"""A value of the user's adds no line to a file of the host, and no secret to what everybody reads."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lemonade_deploy import specs, validate
from lemonade_deploy.content import link_collection
from lemonade_deploy.domain import lemond_config, model_run, user_values, vllm_arguments
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.lemond_api import Lemond
from lemonade_deploy.domain.refusal import Refused
from lemonade_deploy.validate import Variable

ROOT = Path(__file__).resolve().parents[2]
KNOWN = specs.load()
NAME = "ansible_collections.lemonade.deploy.plugins"
INJECTED = "0\nExecStartPre=+/bin/sh -c 'id > /root/x'\nX=1"
LINES = [
    ("lemonade_server_environment", {"A": INJECTED}),
    ("lemonade_server_environment", {"A": "0\rUser=root"}),
    ("lemonade_server_environment", {"A": "0\0User=root"}),
    ("lemonade_server_environment", {"A\nUser=root\nB": "1"}),
    ("lemonade_server_environment", {"A": "\x1b[31m"}),
    ("models_hub_url", "https://mirror/x\nUser=root"),
    ("lemonade_server_binary", "/usr/bin/lemond\nUser=root"),
    ("lemonade_server_host", "127.0.0.1\rx"),
    ("lemonade_server_hf_token", "a\rLEMONADE_API_KEY=b"),
    ("vllm_rocm_mirrors", ["https://mirror/x", "https://mirror/\n"]),
]
SECRETS = [
    ("lemonade_server_vllm_args", "--enforce-eager --api-key sesame"),
    ("lemonade_server_vllm_args", "--api_ke=sesame"),
    ("lemonade_server_vllm_args", "--hf-t sesame '"),
    ("models_wanted", [{"name": "a"}, {"name": "b", "args": "--hf-token=sesame"}]),
    ("lemonade_server_settings", {"vllm": {"args": "--api-key sesame"}}),
    ("lemonade_server_settings", {"llamacpp": {"rocm_args": "--api-key sesame"}}),
]
GOOD = [
    ("lemonade_server_environment", {"A": 'x "y" %z \\', "B": 0, "C": "a\tb"}),
    ("lemonade_server_vllm_args", "--enforce-eager\n--max-num-seqs 8\n"),
    ("models_wanted", [{"name": "a", "args": "--kv-cache-dtype fp8", "ctx_size": 4096}]),
    ("lemonade_server_settings", {"vllm": {"args": "--api-key-file /x"}, "log_level": "info"}),
    ("verify_prompt", "one\ntwo"),
]


@pytest.mark.parametrize(("name", "value"), LINES)
def test_no_value_adds_a_line_and_the_command_names_its_place(name: str, value: Any) -> None:
    (problem,) = validate.check([Variable(name, value, "plain", "hosts.yml", 7)], KNOWN)
    assert problem.startswith(f"hosts.yml:7: {name}: ")
    assert user_values.fault(name, value)
    with pytest.raises(Refused, match=name):
        user_values.demand({name: value})


@pytest.mark.parametrize(("name", "value"), SECRETS)
def test_no_secret_among_arguments_whatever_serves(name: str, value: Any) -> None:
    (problem,) = validate.check([Variable(name, value, "plain", "hosts.yml", 7)], KNOWN)
    assert "sesame" not in problem
    assert "lemonade_server_api_key" in problem
    with pytest.raises(Refused, match=name):
        user_values.demand({name: value})


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_good_values_pass(name: str, value: Any) -> None:
    assert validate.check([Variable(name, value)], KNOWN) == []
    user_values.demand({name: value})


def test_a_models_own_arguments_are_judged_without_the_other_roles(tmp_path: Path) -> None:
    given = {"models": [{"name": "m", "args": "--api-k=x"}], "pending": False}
    models = model_run.Models(given, False, Host(str(tmp_path)), Lemond("http://127.0.0.1:1"))
    with pytest.raises(Refused, match="--api-key"):
        models.plan()


@pytest.mark.parametrize("text", ["a\rb", "a\nb", "a\0b"])
def test_what_ends_a_line_for_systemd_is_in_no_secret_and_no_argument(text: str) -> None:
    with pytest.raises(Refused, match="line break"):
        lemond_config.secrets_text({"A": text})
    with pytest.raises(Refused, match="line break"):
        vllm_arguments.quoted([text])


@pytest.fixture
def module(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """lemonade_service, imported as Ansible imports it."""
    monkeypatch.syspath_prepend(str(link_collection(tmp_path_factory.mktemp("collections"))))
    before = set(sys.modules)
    yield importlib.import_module(f"{NAME}.modules.lemonade_service")
    for name in set(sys.modules) - before:
        if name.startswith("ansible_collections"):
            del sys.modules[name]


@pytest.mark.parametrize("daemon", ["lemond", "vllm"])
@pytest.mark.parametrize(
    "given",
    [
        {"environment": {"A": INJECTED}},
        {"hub_url": "https://m/\nUser=root"},
        {"vllm_args": "--api-key x"},
        {"settings": {"vllm": {"args": "--hf-token x"}}},
        {"models": [{"name": "m", "args": "--api-key x"}]},
    ],
)
def test_the_module_itself_refuses(
    module: ModuleType, tmp_path: Path, daemon: str, given: dict[str, Any]
) -> None:
    """`--tags lemonade_server` goes past preflight."""
    options = {name: spec.get("default") for name, spec in module.ARGUMENTS.items()}
    service = module.Service(
        Host(str(tmp_path)), {**options, "unit": "[Service]\n", "daemon": daemon, **given}
    )
    with pytest.raises(Exception, match=r"line break|lemonade_server_api_key") as caught:
        service.plan()
    assert type(caught.value).__name__ == "Refused"


def test_the_role_gives_the_module_all_that_its_templates_hold() -> None:
    task = (ROOT / "roles/lemonade_server/tasks/main.yml").read_text()
    assert 'environment: "{{ lemonade_server_environment }}"' in task
    assert 'hub_url: "{{ models_hub_url' in task
