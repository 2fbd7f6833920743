# SPDX-License-Identifier: Apache-2.0
"""The tables at the end of a verb: counts that add up, and no column that says nothing."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from lemonade_deploy import table
from lemonade_deploy.cli import verify
from lemonade_deploy.results import HostRun
from lemonade_deploy.verify.verdict import TestResult, Verdict


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=160), out


def shown(verdict: Verdict) -> str:
    screen, out = console()
    verify.show(screen, [verdict])
    return out.getvalue()


def test_verify_counts_every_test_and_names_the_skipped_ones() -> None:
    why = "not tested: no line of the kernel's log can be read here"
    tests = [TestResult(f"service::{number}", "passed", 0.1) for number in range(35)]
    tests.append(TestResult("engine::no_fault", "skipped", 0.1, why, properties={"warning": why}))
    head, row, *rest = shown(Verdict("halo-1", tests)).splitlines()
    counts = dict(zip(head.split(), row.split(), strict=False))
    assert [counts[name] for name in ("tests", "passed", "failed", "skipped")] == ["36", "35", "0", "1"]
    assert "\n".join(rest).count(why) == 1
    plain = Verdict("halo-1", [TestResult("engine::x", "skipped", 0.1, "no journal")])
    assert "halo-1: engine::x: skipped: no journal" in shown(plain)


def host(name: str, **more: Any) -> HostRun:
    made = HostRun(name)
    for key, value in more.items():
        setattr(made, key, value)
    return made


def columns(*hosts: HostRun) -> list[str]:
    screen, out = console()
    table.show(screen, hosts, check=False, diff=False)
    return next(line for line in out.getvalue().splitlines() if line.startswith("host")).split()


def test_a_column_that_is_empty_for_all_hosts_is_left_out() -> None:
    bundle = {"tag": "vllm0.22.1-rocm7.13.0-gfx1151", "path": "/x", "digest": "1"}
    assert columns(host("a", bundle=bundle), host("b")) == ["host", "status", "bundle", "time"]
    assert columns(host("a")) == ["host", "status", "time"]
    gpu = [{"driver": "in-tree", "cwsr": "ok"}]
    assert columns(host("a", gpu=gpu, kernel="6.18.4"), host("b")) == [
        *("host", "status", "kernel", "driver", "CWSR", "time")
    ]
