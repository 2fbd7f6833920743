# SPDX-License-Identifier: Apache-2.0
"""The JSON document: always valid, never with a secret, one whatever happens."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy import envelope, inventory, secrets_in_argv
from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.errors import UsageError

SPELLINGS = [
    ["-Ce", "lemonade_server_api_key=SEKRET"],
    ["-vefoo_token=SEKRET"],
    ["-etoken=SEKRET"],
    ["-CDeapi_key=SEKRET"],
    ["--extra-v", "lemonade_server_hf_token=SEKRET"],
    ["--extra-v=lemonade_server_hf_token=SEKRET"],
    ["-e", "a=1 hf_token=SEKRET"],
    ["-e", '{"api_key": "SEKRET"}'],
    ["-e{api_key: SEKRET}"],
    ["-e", '{"api_key": "SEKRET"'],
    ["api_key=SEKRET"],
    ["-e", "vllm_rocm_base_url=https://me:SEKRET@mirror/x"],
    ["--to", "password:SEKRET"],
    ["-vesalty=SEKRET"],
]


@pytest.mark.parametrize("words", SPELLINGS, ids=" ".join)
def test_a_secrets_value_is_not_shown_however_it_is_spelt(words: list[str]) -> None:
    shown = " ".join(secrets_in_argv.redact(["site.yml", *words], ["salty"]))
    assert "SEKRET" not in shown
    assert "***" in shown
    assert shown.startswith("site.yml ")


@pytest.mark.parametrize("words", SPELLINGS[:11], ids=" ".join)
def test_no_answer_of_the_command_holds_a_secret_of_its_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (tmp_path / "play.yml").write_text("- hosts: all\n  tasks: []\n")
    argv = ["play.yml", "-i", "x,", *words, "--json"]
    monkeypatch.setattr(sys, "argv", ["lemonade-deploy", *argv])
    assert dispatch(argv) == 64
    ran = capsys.readouterr()
    assert "SEKRET" not in ran.out + ran.err
    assert json.loads(ran.out)["exit_code"] == 64


def test_a_secret_as_the_playbooks_name_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["api_key=SEKRET", "--json"]) == 64
    ran = capsys.readouterr()
    assert "SEKRET" not in ran.out + ran.err


@pytest.mark.parametrize(
    "word", ["-i", "hosts.yml", "-l", "a:b", "max_tokens=5", "@vars.yml", "--junit=x.xml", "::1", "host,"]
)
def test_what_is_no_secret_is_shown(word: str) -> None:
    assert secrets_in_argv.redact([word]) == [word]


def test_a_name_that_is_no_text_makes_no_invalid_document(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    argv = ["\udcff\udcfe.yml", "--json"]
    assert dispatch(argv) == 64
    found = json.loads(capsysbinary.readouterr().out.decode("utf-8"))
    assert "\ufffd\ufffd.yml" in found["command"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@given(
    value=st.recursive(
        st.floats() | st.text(st.characters(exclude_categories=())) | st.none() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner),
    )
)
def test_the_document_is_valid_whatever_it_holds(encoding: str, value: object) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    before, sys.stdout = sys.stdout, stream
    try:
        envelope.write({"value": value})
    finally:
        sys.stdout = before

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(
        raw.getvalue().decode("ascii" if encoding == "latin-1" else encoding), parse_constant=refuse
    )
    json.dumps(found, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("content", [b"\x7fELF\x02\x01\0\0", b"a\nb\xff\xfe\n", b"\0"])
def test_a_binary_inventory_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(content)
    with pytest.raises(UsageError, match=r"hosts:[12]: the inventory is"):
        inventory.select(["hosts"], tmp_path, tmp_path)


def test_an_inventory_that_is_a_program_may_be_of_any_bytes(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"\x7fELF\0")
    os.chmod(tmp_path / "hosts", 0o755)
    assert inventory.select(["hosts"], tmp_path, tmp_path).sources == (str(tmp_path / "hosts"),)
