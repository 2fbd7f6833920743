# SPDX-License-Identifier: Apache-2.0
"""`depot serve` says where other machines reach it, what to set there, and that it holds nothing yet."""

from __future__ import annotations

import socket
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.depot import reach, store
from lemonade_deploy.exits import Exit


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> str:
    """A free port; the server is stopped before it serves."""

    def stop(_server: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", stop)
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert dispatch(["depot", "serve", *words]) == Exit.OK
    return capsys.readouterr().err


def test_bound_to_all_addresses_it_prints_one_that_others_reach(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "_outward", lambda: "10.1.2.3")
    monkeypatch.setattr(reach, "_of_interfaces", lambda: ["127.0.0.1", "10.98.0.1", "10.1.2.3"])
    told = said(capsys, "--depot", str(tmp_path), "--port", port)
    assert "0.0.0.0" not in told
    assert f"{tmp_path} at http://10.1.2.3:{port}; token: {tmp_path / 'token'}" in told
    assert "other addresses: 10.98.0.1.\n" in told
    assert f"  vllm_rocm_depot_url: http://10.1.2.3:{port}\n" in told
    assert '  vllm_rocm_depot_token: "{{ vault_depot_token }}"' in told


def test_a_given_address_is_the_one(tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "--depot", str(tmp_path), "--port", port, "--bind", "127.0.0.1")
    assert f"vllm_rocm_depot_url: http://127.0.0.1:{port}\n" in told
    assert "Only this machine reaches that address" in told and "other addresses" not in told


def test_an_empty_depot_says_so(tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--depot", str(tmp_path / "d"), "--port", port)
    command = f"`lemonade-deploy depot fetch -i INVENTORY --depot {tmp_path / 'd'}`"
    assert f"holds nothing yet: run {command}" in said(capsys, *words)
    for name in ("incoming/a.deb", "vllm1-rocm7-gfx1151/a.partial", "vllm1-rocm7-gfx1151/a.progress"):
        (tmp_path / "d" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "d" / name).touch()
    assert "holds nothing yet" in said(capsys, *words)
    for name in ("packages/a.deb", "mainline/v6.18.20/index.html", "vllm1-rocm7-gfx1151/a"):
        place = tmp_path / "d" / name
        place.parent.mkdir(exist_ok=True, parents=True)
        place.touch()
        assert store.holds_something(tmp_path / "d"), name
        assert "holds nothing" not in said(capsys, *words)
        place.unlink()


def test_this_machines_own_addresses_are_found() -> None:
    """Whatever it has: never loopback where there is another, and each can be listened at."""
    found = reach.addresses("0.0.0.0")
    assert found and (found == ["127.0.0.1"] or not any(map(reach.is_loopback, found)))
    for address in found:
        socket.create_server((address, 0)).close()


def test_without_a_way_out_the_interfaces_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_outward", lambda: "")
    monkeypatch.setattr(reach, "_of_interfaces", lambda: ["127.0.0.1", "10.98.0.1"])
    assert reach.addresses("0.0.0.0") == ["10.98.0.1"]
    monkeypatch.setattr(reach, "_of_interfaces", list)
    assert reach.addresses("") == ["127.0.0.1"]
