# SPDX-License-Identifier: Apache-2.0
"""Who holds a port, against the real /proc and a fixture."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from lemonade_deploy.domain.host import Host
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
