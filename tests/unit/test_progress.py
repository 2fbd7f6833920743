# SPDX-License-Identifier: Apache-2.0
"""What a module tells while it works, and who shows it."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lemonade_deploy import content
from lemonade_deploy.domain import paths, progress
from lemonade_deploy.domain.change import Call, Change, apply_all
from lemonade_deploy.domain.host import Host


def pieces(*sizes: int) -> Generator[bytes, None, None]:
    for size in sizes:
        yield bytes(size)


def test_bytes_share_rate_and_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.5, 102.0, 104.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    host, seen = Host(str(tmp_path)), []
    for _piece in progress.bytes_told(host, "bundle", pieces(*[2_000_000] * 3), 10_000_000, 20_000_000):
        seen.append(host.read(paths.PROGRESS))
    assert host.read(paths.PROGRESS) == "bundle: 0.02 of 0.02 GB, 80 %, 2 MB/s, 3 s left\n"
    assert seen == [None, None, "bundle: 0.01 of 0.02 GB, 70 %, 2 MB/s, 3 s left\n"]  # once a second


@pytest.mark.parametrize(
    ("done", "total", "told"),
    [
        (1_500_000_000, None, "1.50 GB, 7 MB/s"),
        (3_000_000_000, 2_000_000_000, "2.00 of 2.00 GB, 100 %, 7 MB/s, 0 s left"),  # headers count, too
    ],
)
def test_unknown_and_passed_totals(done: int, total: int | None, told: str) -> None:
    assert progress.far(done, total, 7e6) == told


def test_closing_ends_the_source() -> None:
    ended = []

    def source() -> Generator[bytes, None, None]:
        try:
            yield b"x"
            yield b"y"
        finally:
            ended.append(True)

    told = progress.bytes_told(Host("/nowhere"), "x", source(), 0, None)
    next(told)
    told.close()
    assert ended == [True]


def test_what_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    progress.say(Host(str(tmp_path)), "x")


def test_the_ssh_user_may_read_it_whatever_roots_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        progress.say(Host(str(tmp_path)), "x")
    finally:
        os.umask(before)
    real = tmp_path / paths.PROGRESS[1:]
    assert (real.stat().st_mode & 0o777, real.parent.stat().st_mode & 0o777) == (0o644, 0o755)


def test_each_change_is_told_in_one_line_and_gone_afterwards(tmp_path: Path) -> None:
    host, seen = Host(str(tmp_path)), []
    progress.say(host, "a killed run's")
    look = Call(lambda h: seen.append(h.read(paths.PROGRESS)))
    with progress.told(host):
        assert not host.exists(paths.PROGRESS)
        apply_all([Change("kernel", "package\nlinux", "install", operations=(look,))], host)
    assert seen == ["package linux: install\n"]
    assert not host.exists(paths.PROGRESS)


def test_check_mode_touches_nothing(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    progress.say(host, "another run's")
    with progress.told(host, really=False):
        pass
    assert host.exists(paths.PROGRESS)


@pytest.fixture
def plugin() -> Any:
    """The base class, imported as Ansible imports it; nothing of that is left for other tests."""
    before = set(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(content.link_collection(Path(folder))))
        yield importlib.import_module("ansible_collections.lemonade.deploy.plugins.plugin_utils.watched")
        del sys.path[0]
    for name in set(sys.modules) - before:
        if name.startswith("ansible_collections"):
            del sys.modules[name]


def watched(
    plugin: Any, answers: list[Any], check_mode: bool = False, slow: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """A module that ends after the last answer of the host; its result, and what was shown.

    *slow*: it ends while a line is being shown.
    """
    shown: list[str] = []
    over = threading.Event()

    def tell(host: str, text: str) -> None:
        if slow:
            over.set()
            time.sleep(0.2)
        shown.append(f"{host} {text}")

    class Connection:
        def exec_command(self, command: str, sudoable: bool = True) -> tuple[int, bytes, bytes]:
            assert (command, sudoable) == (f"cat {paths.PROGRESS}", False)
            if not answers:
                over.set()
                return 1, b"", b"No such file"
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                over.set()
                raise answer
            return 0, answer, b""

    class Action(plugin.Watched):  # type: ignore[misc, name-defined]
        module = "kernel"

        def __init__(self) -> None:
            self._task = SimpleNamespace(check_mode=check_mode)
            self._connection = Connection()

        def _execute_module(self, module_name: str, **_rest: Any) -> dict[str, Any]:
            assert module_name == "lemonade.deploy.kernel"
            assert check_mode or over.wait(10)
            return {"changed": True}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin, "INTERVAL", 0.01)
        patch.setattr(plugin, "tell", tell)
        patch.setattr(plugin.ActionBase, "run", lambda *_args: {})
        return Action().run(None, {"inventory_hostname": "halo1"}), shown


def test_what_the_host_tells_is_shown_once(plugin: Any) -> None:
    result, shown = watched(plugin, [b"", b"a: install\n", b"a: install\n", b"b: install\n"])
    assert result == {"changed": True}
    assert shown == ["halo1 a: install", "halo1 b: install"]


def test_a_host_that_cannot_be_asked_is_the_modules_to_report(plugin: Any) -> None:
    for error in (OSError("ssh: connect: timed out"), AttributeError("a plugin's own")):
        assert watched(plugin, [b"a\n", error]) == ({"changed": True}, ["halo1 a"])


def test_a_line_that_is_being_shown_comes_before_the_result(plugin: Any) -> None:
    """A worker that ended in the middle of it would keep the lock of the queue to the display."""
    assert watched(plugin, [b"a\n"], slow=True) == ({"changed": True}, ["halo1 a"])


def test_check_mode_is_not_watched(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    assert watched(plugin, [b"a\n"], check_mode=True) == ({"changed": True}, [])
    assert started == []


def test_a_name_that_is_no_text_stops_no_work(tmp_path: Path) -> None:
    progress.say(Host(str(tmp_path)), "model\udcff")
    assert Host(str(tmp_path)).read(paths.PROGRESS) == "model?\n"
