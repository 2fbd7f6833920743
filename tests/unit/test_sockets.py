# SPDX-License-Identifier: Apache-2.0
"""Who holds a port, against the real /proc and a fixture."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from lemonade_deploy.domain import sockets
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.sockets import listener


def test_our_own_port_is_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = listener(Host(), server.getsockname()[1])
        assert found is not None
        assert found.pid == os.getpid()
        assert found.program == str(Path("/proc/self/exe").resolve())


def test_a_free_port_is_nobodys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert listener(Host(), port) is None


def test_a_connection_is_no_listener(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    head = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    )
    row = "   0: 0100007F:33F9 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 989 0 77 1\n"
    (tmp_path / "proc/5/fd").mkdir(parents=True)
    (tmp_path / "proc/5/fd/3").symlink_to("socket:[77]")
    host.write("/proc/5/cgroup", "0::/user.slice/user-1000.slice/lemond.service\n")
    host.write("/proc/net/tcp6", head + row.format(state="01"))
    assert listener(host, 13305) is None
    host.write("/proc/net/tcp6", head + row.format(state="0A"))
    found = listener(host, 13305)
    assert found is not None
    assert (found.pid, found.unit) == (5, "lemond.service")


def test_a_closed_connection_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server cannot bind over what another left, until the kernel has forgotten it."""
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str], *_more: object) -> Completed:
        asked.append(argv)
        return Completed(tuple(argv), 127, "", "not found")

    host, waited = Host(str(tmp_path), run), []
    head = "  sl  local_address rem_address   st\n"
    left = "   0: 0100007F:33F9 0100007F:9198 06 00000000:00000000 03:000004CE 00000000     0   0 0 3 0\n"
    host.write("/proc/net/tcp", head + left)

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            host.write("/proc/net/tcp", head)

    monkeypatch.setattr("lemonade_deploy.domain.sockets.time.sleep", sleep)
    sockets.await_free(host, 14000)
    assert waited == asked == []
    sockets.await_free(host, 0x33F9)
    assert len(waited) == 3
    assert [argv[:2] for argv in asked] == [("ss", "-K")]
