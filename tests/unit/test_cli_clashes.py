# SPDX-License-Identifier: Apache-2.0
"""Variables that do not go together are told once, with the hosts that have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemonade_deploy import validate
from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.exits import Exit
from lemonade_deploy.validate import Variable


def test_a_server_open_to_the_network_is_told_once_for_all_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yml").write_text(
        "all:\n"
        "  vars:\n    ansible_connection: local\n    lemonade_server_host: 0.0.0.0\n"
        "  hosts:\n    halo1:\n    halo2:\n    halo3: {lemonade_server_api_key: s3cret}\n"
        "    halo4: {lemonade_server_host: 127.0.0.1}\n"
    )
    assert dispatch(["site.yml", "-i", "hosts.yml"]) == Exit.USAGE
    said = capsys.readouterr().err
    assert said.count("is wider than loopback") == 1
    assert "lemonade_server_host 0.0.0.0 (hosts halo1, halo2) is wider than loopback" in said
    assert "halo3" not in said and "halo4" not in said


def test_of_many_hosts_some_are_named_and_other_values_are_other_problems() -> None:
    def values(bind: str) -> dict[str, Variable]:
        return {validate.BIND_HOST: Variable(validate.BIND_HOST, bind)}

    by_host = {f"h{number}": values("0.0.0.0") for number in range(10)} | {"x": values("10.0.0.1")}
    many, single = validate.clashes(by_host)
    assert "(hosts h0, h1, h2, h3, h4, h5, h6, h7 and 2 more) is wider" in many
    assert "lemonade_server_host 10.0.0.1 (host x) is wider" in single
