# SPDX-License-Identifier: Apache-2.0
"""vLLM itself as the daemon: its command line, its unit, and who gives way to whom."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy.domain import (
    daemon,
    gpu_check,
    lemond_config,
    lemond_service,
    paths,
    service_keys,
    vllm_arguments,
    vllm_service,
)
from lemonade_deploy.domain.change import Change
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.refusal import Refused
from lemonade_deploy.domain.systemd import UnitState
from lemonade_deploy.domain.vllm_arguments import Served

ENDPOINT = "http://127.0.0.1:13305"
SMOL = {"name": "user.Smol", "checkpoint": "HuggingFaceTB/SmolLM2-135M-Instruct", "ctx_size": 2048}
MODEL = Served("user.Smol", SMOL["checkpoint"], 2048)
RUNS = UnitState(load="loaded", active="active", enabled="enabled", main_pid=7)


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


# --- the command line ----------------------------------------------------------------


def test_the_first_model_is_served_under_the_name_that_lemond_uses() -> None:
    model = vllm_service.model_from([SMOL, {"name": "Other"}], 4096, "--seed 1")
    words = vllm_arguments.argv(model, "127.0.0.1", 14000)
    assert (option(words, "--model"), option(words, "--served-model-name")) == (MODEL.checkpoint, "user.Smol")
    assert (option(words, "--host"), option(words, "--port")) == ("127.0.0.1", "14000")
    assert option(words, "--max-model-len") == "2048"
    assert words[-2:] == ["--seed", "1"]


def test_a_model_of_lemonds_own_needs_no_checkpoint() -> None:
    model = vllm_service.model_from([{"name": "Qwen3.5-0.8B-FP16-vLLM"}], -1, "")
    words = vllm_arguments.argv(model, "::1", 13305)
    assert option(words, "--model") == "Qwen/Qwen3.5-0.8B"
    assert option(words, "--tool-call-parser") == "qwen3_coder"
    assert "--max-model-len" not in words
    assert option(words, "--kv-cache-memory-bytes") == "4G"


@pytest.mark.parametrize(
    "given", ["--kv-cache-memory-bytes 1G", "--gpu_memory_utilization=0.5", "--gpu-memory-util 0.5"]
)
def test_the_users_word_on_memory_counts(given: str) -> None:
    words = vllm_arguments.argv(replace(MODEL, args=vllm_arguments.split(given)), "127.0.0.1", 1)
    assert "4G" not in words


@pytest.mark.parametrize("models", [[], [{"name": "user.NoCheckpoint"}], [{**SMOL, "recipe": "llamacpp"}]])
def test_what_vllm_cannot_serve_is_refused(models: list[dict[str, str]]) -> None:
    with pytest.raises(Refused):
        vllm_service.model_from(models, 4096, "")


@pytest.mark.parametrize(
    "word",
    [
        *("--api-key", "--api_key=x", "--host", "--port=1", "--model", "--hf-token"),
        # vLLM takes a beginning for the whole option (argparse).
        *("--api-ke=x", "--a", "--hos", "--served-model", "--hf_tok=x", "--max-model-l"),
    ],
)
def test_a_secret_or_what_is_ours_is_no_argument(word: str) -> None:
    with pytest.raises(Refused, match="among vLLM's arguments"):
        vllm_arguments.argv(replace(MODEL, args=(word,)), "127.0.0.1", 1)


@given(
    st.lists(st.text(st.characters(blacklist_characters="\n\r\0", blacklist_categories=["Cs"])), max_size=4)
)
def test_quoting_for_systemd_loses_nothing(words: list[str]) -> None:
    line = vllm_arguments.quoted(words)
    assert shlex.split(line.replace("%%", "%").replace("$$", "$")) == words


# --- plans ---------------------------------------------------------------------------


def state(**more: object) -> vllm_service.Current:
    shared = lemond_service.Current(None, None, None, True, "linked", UnitState(), False, gpu_check.script())
    values: dict[str, object] = {"unit": "unit\n", "state": RUNS, "lemond": UnitState(), "model_there": True}
    return vllm_service.Current(**{**values, "shared": shared, **more})  # type: ignore[arg-type]


DESIRED = vllm_service.Desired("unit\n", "", MODEL)


def planned(current: vllm_service.Current, desired: vllm_service.Desired = DESIRED) -> list[Change]:
    return vllm_service.plan(current, desired, ENDPOINT, 60)


def names(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.object, change.action) for change in changes]


def test_nothing_to_do() -> None:
    assert planned(state()) == []


def test_lemond_gives_way_before_vllm_starts() -> None:
    changes = planned(state(unit=None, state=UnitState(), lemond=RUNS))
    assert names(changes) == [
        ("unit lemonade-vllm.service", "write"),
        ("service lemond", "stop"),
        ("service vllm", "start"),
    ]


def test_a_changed_unit_restarts() -> None:
    assert names(planned(state(unit="old\n")))[-1] == ("service vllm", "restart")


def test_without_the_model_lemond_goes_on_until_it_is_there() -> None:
    changes = planned(state(unit=None, state=UnitState(), lemond=RUNS, model_there=False))
    assert names(changes) == [("unit lemonade-vllm.service", "write")]
    left = vllm_service.starts("models", UnitState(), RUNS, ENDPOINT, 60, due=True)
    assert names(left) == [("service lemond", "stop"), ("service vllm", "start")]


def test_an_enabled_lemond_would_be_back_after_a_reboot() -> None:
    changes = planned(state(lemond=UnitState(enabled="enabled")))
    assert names(changes) == [("service lemond", "stop")]


# --- what stands on a host -----------------------------------------------------------


def test_the_daemon_of_a_host_and_its_endpoint(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert daemon.installed(host) == ""
    host.write(paths.LEMOND_DEFAULTS, '{"port": 14000}')
    assert (daemon.installed(host), daemon.endpoint(host)) == ("lemond", "http://127.0.0.1:14000")
    text = vllm_service.unit_text("ExecStart=/x @ARGUMENTS@", MODEL, "0.0.0.0", 15000)
    host.write(paths.VLLM_UNIT, text)
    assert (daemon.installed(host), daemon.endpoint(host)) == ("vllm", "http://127.0.0.1:15000")
    assert daemon.served_name(host) == "user.Smol"


# --- keys ----------------------------------------------------------------------------


def test_a_key_is_made_once_and_kept(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert service_keys.api_key(host, "", generate=False) == ""
    made = service_keys.api_key(host, "", generate=True)
    assert len(made) >= 43  # 32 bytes in base64
    assert made != service_keys.api_key(host, "", generate=True)
    host.write(paths.LEMOND_SECRETS, lemond_config.secrets_text({"LEMONADE_API_KEY": made}))
    assert service_keys.api_key(host, "", generate=True) == made
    assert service_keys.api_key(host, "given", generate=True) == "given"
