# SPDX-License-Identifier: Apache-2.0
"""What people see: events in, lines out; on a terminal and in a pipe."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from lemonade_deploy import table
from lemonade_deploy.cli import doctor
from lemonade_deploy.console import LiveDisplay, PlainDisplay, clock, elapsed
from lemonade_deploy.events import Collector
from lemonade_deploy.results import HostRun, Step


def event(kind: str, host: str = "halo-1", task: str = "load", **data: Any) -> dict[str, Any]:
    told = {"host": host, "role": "lemonade.deploy.models", "task": task, "task_action": "told", **data}
    return {"event": kind, "pid": 42, "event_data": told}


def collector(display: Any, *hosts: str) -> Collector:
    found = Collector(list(hosts) or ["halo-1"], display, {"halo-1": {"models": 1800.0}})
    display.watch(found.hosts.values())
    found({"event": "playbook_on_start", "pid": 42})
    return found


def plain(**more: Any) -> tuple[PlainDisplay, io.StringIO]:
    stream = io.StringIO()
    return PlainDisplay(Console(file=stream, width=200, no_color=True), **more), stream


def test_a_pipe_gets_a_line_for_a_layer_a_change_and_a_failure() -> None:
    display, stream = plain()
    with display:
        take = collector(display)
        take(event("runner_on_start"))
        change = {"layer": "models", "object": "model x", "action": "pull", "detail": "93 MB"}
        take(event("runner_on_ok", res={"changed": True, "changes": [change]}))
        take(event("runner_on_start", task="ask"))
        take(event("runner_on_failed", task="ask", res={"msg": "no answer\nat all"}))
    lines = [line.split(maxsplit=1)[1] for line in stream.getvalue().splitlines()]
    assert lines == [
        "halo-1  models: load",
        "halo-1  models: model x: pull (93 MB)",
        "halo-1  models: failed: no answer",
    ]


def test_a_note_of_a_module_is_a_warning() -> None:
    display, stream = plain()
    with display:
        collector(display)(event("runner_on_ok", res={"notes": ["the depot is away"]}))
    assert "[WARNING] halo-1: the depot is away" in stream.getvalue()


def test_a_long_step_gives_signs_of_life_with_its_limit() -> None:
    display, stream = plain(heartbeat=0.05)
    with display:
        collector(display)(event("runner_on_start"))
        deadline = time.monotonic() + 60
        while stream.getvalue().count("of at most 30:00") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)  # the heartbeat is a thread
    assert stream.getvalue().count("models: load: 0:00 of at most 30:00") >= 2


def test_a_task_tells_how_far_it_is() -> None:
    display, stream = plain()
    with display:
        take = collector(display)
        take({"event": "verbose", "stdout": "[PROGRESS] halo-1 too early\n"})  # no step to belong to
        take(event("runner_on_start"))
        take({"event": "verbose", "stdout": "[PROGRESS] halo-1 a.safetensors: 1.00 of 2.00 GB\n"})
        take({"event": "verbose", "stdout": "[PROGRESS] halo-9 nobody\n"})
    assert "halo-1  models: a.safetensors: 1.00 of 2.00 GB" in stream.getvalue()
    assert "PROGRESS" not in stream.getvalue() and "too early" not in stream.getvalue()
    assert "[PROGRESS]" not in "".join(take.output)
    console = Console(file=io.StringIO(), width=80)
    live = LiveDisplay(Console(file=io.StringIO(), force_terminal=True, width=80, height=10))
    live.watch(take.hosts.values())
    console.print(live._draw())
    assert "1.00 of 2.00 GB" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_log_gets_a_sign_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    display, stream = plain()
    with display:
        take = collector(display)
        take(event("runner_on_start"))
        for second in range(40):
            monkeypatch.setattr("lemonade_deploy.console.time.monotonic", lambda now=second: 500.0 + now)
            take({"event": "verbose", "stdout": f"[PROGRESS] halo-1 {second} %\n"})
    shown = [line.split()[-2] for line in stream.getvalue().splitlines() if line.endswith("%")]
    assert shown == ["0", "15", "30"]


def test_a_plan_is_not_shown_twice() -> None:
    display, stream = plain()
    with display:
        take = Collector(["halo-1"], display)
        display.watch(take.hosts.values(), plan=True)
        change = {"layer": "models", "object": "model x", "action": "pull", "detail": ""}
        take(event("runner_on_ok", res={"changed": True, "changes": [change]}))
    assert "model x" not in stream.getvalue()
    table.show(display.console, list(take.hosts.values()), check=True, diff=False)
    assert stream.getvalue().count("model x: pull") == 1


def test_a_terminal_shows_one_live_line_a_host() -> None:
    stream = io.StringIO()
    display = LiveDisplay(Console(file=stream, force_terminal=True, width=80, height=10))
    with display:
        take = collector(display, "halo-1", "halo-2")
        take(event("runner_on_start"))
        console = Console(file=io.StringIO(), width=80)
        console.print(display._draw())
        drawn = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert drawn[0].split() == ["halo-1", "models", "load", "0:00", "of", "at", "most", "30:00"]
    assert drawn[1].split() == ["halo-2", "waiting"]
    assert drawn[2].split() == ["0:00", "1", "of", "2", "at", "work"]


def test_many_hosts_do_not_scroll_the_screen() -> None:
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True, width=80, height=10))
    with display:
        collector(display, *(f"halo-{number}" for number in range(60)))
        console = Console(file=io.StringIO(), width=80)
        console.print(display._draw())
    drawn = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(drawn) < 10
    assert "53 more hosts" in drawn[-2]


def test_the_table_shows_before_and_after_and_the_answer_last() -> None:
    host = HostRun("halo-1", tasks=3, kernel="7.0.0-31-generic", rebooted=True)
    host.gpu_before, host.gpu = [{"cwsr": "missing"}], [{"cwsr": "ok", "driver": "in-tree"}]
    host.bundle = {"tag": "vllm0.25.2.dev0+rocm7.15.0a20260724.g752a3a504.d20260724-rocm7.15.0-gfx1151"}
    host.inference = {"model": "m", "content": "Four.", "tokens_per_second": 19.08}
    stream = io.StringIO()
    table.show(Console(file=stream, width=120), [host], check=False, diff=False)
    text = stream.getvalue()
    for word in ("changed", "7.0.0-31-generic", "in-tree", "missing → ok", "vllm0.25.2.dev0…gfx1151", "19.1"):
        assert word in text
    assert text.rstrip().endswith("Four.")
    narrow = io.StringIO()
    table.show(Console(file=narrow, width=80), [host], check=False, diff=False)
    assert max(len(line) for line in narrow.getvalue().splitlines()) <= 80
    assert "missing → ok" in narrow.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65, "1:05"), (3725, "1:02:05")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
    assert elapsed(Step("x", "y", time.monotonic() - seconds, 3600)) == f"{text} of at most 1:00:00"


def test_diffs_of_every_form_are_shown() -> None:
    host = HostRun("halo-1")
    host.diffs = [
        {"before": "a\nb\n", "after": "a\nc\n", "after_header": "/etc/x"},
        {"before": {"k": 1}, "after": {"k": 2}, "before_header": "settings"},
        {"prepared": "by hand"},
    ]
    stream = io.StringIO()
    table.show(Console(file=stream, width=100), [host], check=False, diff=True)
    for word in ("/etc/x", "-b", "+c", "settings", '-  "k": 1', '+  "k": 2', "by hand"):
        assert word in stream.getvalue()


def test_doctor_puts_errors_first_and_counts_them() -> None:
    host = HostRun("halo-1", tasks=1)
    host.findings = [
        {"id": "disk-space", "severity": "info", "found": "f1", "remedy": "r1", "source": "/x"},
        {"id": "cwsr-missing", "severity": "error", "found": "f2", "remedy": "r2", "source": "/y"},
    ]
    stream = io.StringIO()
    doctor.show(Console(file=stream, width=100), [host])
    lines = stream.getvalue().splitlines()
    assert lines[0] == "halo-1: 1 error, 1 info"
    assert "cwsr-missing: f2  (/y)" in lines[1]
    assert "→ r2" in lines[2]
    assert doctor.code_of([host]) == 1
    host.findings = host.findings[:1]
    assert doctor.code_of([host]) == 0


class TestCollector:
    """Events that do not lead straight to a result."""

    def test_it_keeps_no_event_files(self) -> None:
        display, _stream = plain()
        with display:
            assert collector(display)(event("runner_on_start")) is False

    def test_loop_items_count_one_by_one(self) -> None:
        display, _stream = plain()
        with display:
            take = collector(display)
            items = [
                {"changed": True, "dest": "/a", "diff": {"before": "", "after": "x"}},
                {"changed": False, "dest": "/b"},
                {"changed": True, "dest": "/c"},
            ]
            take(
                event(
                    "runner_on_ok",
                    task_action="ansible.builtin.copy",
                    res={"results": items, "changed": True},
                )
            )
        host = take.hosts["halo-1"]
        assert [change["object"] for change in host.changes] == ["/a", "/c"]
        assert len(host.diffs) == 1

    def test_a_hidden_result_fails_without_telling(self) -> None:
        display, _stream = plain()
        with display:
            take = collector(display)
            take(event("runner_on_failed", res={"censored": "hidden", "failed": True}))
        assert take.hosts["halo-1"].failure is not None
        assert take.hosts["halo-1"].failure.message == "hidden"

    def test_without_statistics_unfinished_hosts_have_failed(self) -> None:
        display, _stream = plain()
        with display:
            take = collector(display, "halo-1", "halo-2")
            take(event("runner_on_start"))
            take.finish(interrupted=True)
        assert [host.status for host in take.hosts.values()] == ["failed", "skipped"]
        assert take.hosts["halo-1"].failure.layer == "models"  # type: ignore[union-attr]


@pytest.mark.parametrize("width", [70, 80, 100, 120])
def test_no_word_of_the_table_is_cut_on_a_narrow_terminal(width: int) -> None:
    host = HostRun("strix-halo-dirty-1", tasks=3, kernel="7.0.0-31-generic")
    host.gpu_before, host.gpu = [{"cwsr": "missing"}], [{"cwsr": "ok", "driver": "in-tree"}]
    host.bundle = {"tag": "vllm0.25.2.dev0+rocm7.15.0-gfx1151"}
    host.inference = {"model": "m", "content": "Four.", "tokens_per_second": 19.08}
    stream = io.StringIO()
    table.show(Console(file=stream, width=width), [host], check=False, diff=False)
    head, row = stream.getvalue().splitlines()[1:3]
    assert "answer" in head and "tok/s" in head and "time" in head
    assert "strix-halo-dirty-1  ok " in row and "missing → ok" in row and "19.1" in row
    assert "gfx1151" in stream.getvalue()
