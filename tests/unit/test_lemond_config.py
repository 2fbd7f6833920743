# SPDX-License-Identifier: Apache-2.0
"""lemond's settings: what is written, what is refused, what is read back."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy.domain import lemond_config as config
from lemonade_deploy.domain import paths
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.lemond_overrides import overrides
from lemonade_deploy.domain.module import Refused

ROOT = Path(__file__).resolve().parents[2]


def test_the_launcher_is_a_file_and_nothing_is_broadcast() -> None:
    written = json.loads(config.text(config.Settings()))
    assert written["vllm"]["rocm_bin"] == paths.LAUNCHER
    assert written["broadcast"] is False
    assert written["global_timeout"] > 0


def test_further_settings_are_laid_over_section_by_section() -> None:
    settings = config.Settings(extra={"vllm": {"backend": "rocm"}, "max_loaded_models": 2})
    written = config.document(settings)
    assert written["vllm"] == {"rocm_bin": paths.LAUNCHER, "args": "", "backend": "rocm"}
    assert written["max_loaded_models"] == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "halo-1"])
def test_no_wide_binding_without_a_key(host: str) -> None:
    with pytest.raises(Refused, match="API key"):
        config.check(config.Settings(host=host), "")
    config.check(config.Settings(host=host), "a-key")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_needs_no_key(host: str) -> None:
    config.check(config.Settings(host=host), "")


@pytest.mark.parametrize(
    "settings",
    [config.Settings(global_timeout=0), config.Settings(port=0), config.Settings(ctx_size=0)],
)
def test_values_that_lemond_takes_and_that_hurt_are_refused(settings: config.Settings) -> None:
    with pytest.raises(Refused):
        config.check(settings, "")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("localhost", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("fd00::5", "http://[fd00::5]:1"),
        ("10.1.2.3", "http://10.1.2.3:1"),
    ],
)
def test_endpoint(host: str, url: str) -> None:
    assert config.endpoint(host, 1) == url


def test_config_json_wins_over_our_file(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert config.read_endpoint(host) == "http://127.0.0.1:13305"
    host.write(paths.LEMOND_DEFAULTS, config.text(config.Settings(port=8000)))
    assert config.read_endpoint(host) == "http://127.0.0.1:8000"
    host.write(config.USER_CONFIG, '{"port": 9999}')
    assert config.read_endpoint(host) == "http://127.0.0.1:9999"
    # lemond sets a broken one aside and starts with the defaults.
    for odd in ("{broken", "null", "[]", '{"port": null, "host": 5}', '{"port": "none"}'):
        host.write(config.USER_CONFIG, odd)
        assert config.read_endpoint(host) == "http://127.0.0.1:8000"


def test_overridden_settings_are_found() -> None:
    settings = config.Settings(ctx_size=4096, vllm_args="--x 1")
    effective = {**config.document(settings), "unrelated": 1}
    assert config.findings(settings, effective) == []
    effective["ctx_size"] = -1
    effective["vllm"] = {"rocm_bin": "builtin", "args": "--x 1"}
    found = config.findings(settings, effective)
    assert [finding["id"] for finding in found] == ["config-overridden"] * 2
    assert "ctx_size" in found[0]["found"]
    assert found[1]["found"] == f'lemond uses vllm.rocm_bin = "builtin", ours is "{paths.LAUNCHER}"'


def test_an_override_is_told_in_the_words_of_preflight_and_secrets_are_not(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    settings = config.Settings(vllm_args="--api-key sesame")
    host.write(paths.LEMOND_DEFAULTS, config.text(settings))
    host.write(config.USER_CONFIG, '{\n"vllm": {"args": "--api-key open"},\n"port": 9999}')
    effective = config.merged(config.document(settings), json.loads(host.read(config.USER_CONFIG) or ""))
    found = config.findings(settings, effective, overrides(host))
    assert [one["source"] for one in found] == [config.USER_CONFIG] * 2
    assert found[0]["found"] == f"{config.USER_CONFIG} line 3: port is 9999, ours is 13305"
    assert "sesame" not in str(found)
    assert "open" not in str(found[1])
    assert "sesame" not in str(config.findings(settings, effective))


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r\0"), min_size=1))
def test_a_secret_survives_its_file(value: str) -> None:
    text = config.secrets_text({"LEMONADE_API_KEY": value, "HF_TOKEN": ""})
    assert "HF_TOKEN" not in text
    assert "\n" not in text[:-1]

    class Reader(Host):
        def read(self, path: str) -> str | None:
            return text

    assert config.read_secret(Reader(), "LEMONADE_API_KEY") == value


@given(st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1))
def test_systemd_reads_the_same_secret(value: str) -> None:
    """systemd.exec(5): in double quotes a backslash escapes like in a shell."""
    line = config.secrets_text({"K": value})
    assert shlex.split(line.replace("\\$", "$").replace("\\`", "`")) == [f"K={value}"]


def test_a_secret_of_two_lines_is_refused() -> None:
    with pytest.raises(Refused, match="HF_TOKEN"):
        config.secrets_text({"HF_TOKEN": "a\nLEMONADE_API_KEY=b"})


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_API_KEY", "db_password"])
def test_no_secret_in_a_unit_file(name: str) -> None:
    with pytest.raises(Refused, match=name):
        config.check_unit(f'[Service]\nEnvironment="{name}=x"\n')
    config.check_unit('[Service]\nEnvironment="HF_ENDPOINT=https://hub.example"\n')


def test_the_unit_names_the_files_that_the_module_writes() -> None:
    """The template is data for people, so its paths stand there once more."""
    unit = (ROOT / "roles/lemonade_server/templates/lemond.service.j2").read_text()
    assert f"\nEnvironment=LEMONADE_DEFAULTS_PATH={paths.LEMOND_DEFAULTS}\n" in unit
    assert f"\nEnvironmentFile=-{paths.LEMOND_SECRETS}\n" in unit
    assert "\nEnvironment=PYTHONNOUSERSITE=1\n" in unit
    assert "\nLimitMEMLOCK=infinity\n" in unit
    assert "\nSupplementaryGroups=render video\n" in unit
    # More than one makes $CACHE_DIRECTORY a list, which lemond takes for a single path.
    assert unit.count("\nCacheDirectory=lemonade\n") == 1
