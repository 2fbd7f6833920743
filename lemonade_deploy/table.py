# SPDX-License-Identifier: Apache-2.0
"""The end of a run for people: table, plan, failures with remedies, diffs, the model's answer."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lemonade_deploy.console import STYLES, clock, describe
from lemonade_deploy.results import HostRun


def show(console: Console, hosts: Sequence[HostRun], check: bool, diff: bool) -> None:
    """Everything after the run, the answer last."""
    if diff:
        for host in hosts:
            _diffs(console, host)
    if check:
        _plan(console, hosts)
    console.print()
    left_out = next((some for some in _LEFT_OUT if _fits(console, _table(hosts, check, some))), _LEFT_OUT[-1])
    console.print(_table(hosts, check, left_out))
    if "bundle" in left_out:
        for tag in dict.fromkeys(str(host.bundle["tag"]) for host in hosts if host.bundle):
            console.print(Text(f"bundle: {tag}"))
    for host in hosts:
        _failure(console, host)
    for host in hosts:
        _answer(console, host)


# What a narrow terminal does without, the first that fits.
_LEFT_OUT: tuple[tuple[str, ...], ...] = (
    (),
    ("bundle",),
    ("bundle", "driver"),
    ("bundle", "driver", "kernel"),
)


def _fits(console: Console, table: Table) -> bool:
    return console.measure(table, options=console.options.update(width=1000)).maximum <= console.width


def _table(hosts: Sequence[HostRun], check: bool, left_out: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    rows = [_row(host, check) for host in hosts]
    # What no host has anything in says nothing: a rollback, for instance, looks at no driver.
    told = [name for name in _COLUMNS if name in _ALWAYS or any(row[name] != "-" for row in rows)]
    names = [name for name in told if name not in left_out]
    for name in names:
        right = name in ("tok/s", "time")
        table.add_column(
            name, "", justify="right" if right else "left", overflow="fold", no_wrap=name != "bundle"
        )
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


_ALWAYS = ("host", "status", "time")
_COLUMNS = ("host", "status", "kernel", "driver", "CWSR", "bundle", "answer", "tok/s", "time")


def _row(host: HostRun, check: bool) -> dict[str, str | Text]:
    status = "would change" if check and host.status == "changed" else host.status
    return {
        "host": host.name,
        "status": Text(status, STYLES[host.status]),
        "kernel": host.kernel or "-",
        "driver": "/".join(dict.fromkeys(str(gpu.get("driver")) for gpu in host.gpu)) or "-",
        "CWSR": cwsr(host),
        "bundle": _short_tag(str((host.bundle or {}).get("tag") or "-")),
        "answer": _short_answer(host),
        "tok/s": _number((host.inference or {}).get("tokens_per_second")),
        "time": clock(host.seconds),
    }


def cwsr(host: HostRun) -> str:
    """``missing → ok``, or one word where nothing changed."""
    before, after = (
        "/".join(dict.fromkeys(str(gpu.get("cwsr")) for gpu in gpus)) for gpus in (host.gpu_before, host.gpu)
    )
    return f"{before} → {after}" if before and after and before != after else after or before or "-"


def _short_tag(tag: str) -> str:
    """A bundle's tag without the middle: ``vllm0.25.2.dev0…gfx1151`` (the JSON has it all)."""
    head, _plus, rest = tag.partition("+")
    return f"{head}…{rest.rsplit('-', 1)[-1]}" if rest else tag


def _short_answer(host: HostRun) -> str:
    if not host.inference:
        return "-"
    return "yes" if str(host.inference.get("content") or "").strip() else "empty"


def _number(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, int | float) else "-"


def _plan(console: Console, hosts: Sequence[HostRun]) -> None:
    for host in hosts:
        if not host.changes:
            continue
        console.print(Text(f"{host.name}: the run would", style="bold"))
        for change in host.changes:
            console.print(Text(f"  {change['layer']:<16} {describe(change)}"))
        for reason in (host.decision or {}).get("reasons") or []:
            console.print(Text(f"  because {reason}", style="dim"))


def _failure(console: Console, host: HostRun) -> None:
    if host.reboot_required:
        console.print(Text(f"{host.name}: a reboot is due: {'; '.join(host.reboot_required)}", "bold yellow"))
    elif host.failure:
        failure = host.failure
        console.print(Text(f"{host.name}: {host.status} in {failure.layer}: {failure.task}", "bold red"))
        console.print(Text("  " + failure.message.replace("\n", "\n  ")))
        if failure.remedy:
            console.print(Text(f"  → {failure.remedy}"))


def _answer(console: Console, host: HostRun) -> None:
    if not host.inference:
        return
    content = str(host.inference.get("content") or "").strip()
    where = f" at {host.endpoint}" if host.endpoint else ""
    console.print(Text(f"{host.name}: {host.inference.get('model')}{where} says:", "bold"))
    console.print(Text("  " + content.replace("\n", "\n  ")))


def _diffs(console: Console, host: HostRun) -> None:
    for diff in host.diffs:
        lines = _diff_lines(diff)
        if lines:
            name = diff.get("after_header") or diff.get("before_header") or ""
            console.print(Text(f"{host.name}: {name}", "bold"))
        for line in lines:
            console.print(Text(line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")))


def _diff_lines(diff: Mapping[str, Any]) -> list[str]:
    if "prepared" in diff:
        return str(diff["prepared"]).splitlines()
    before, after = _lines(diff.get("before")), _lines(diff.get("after"))
    return list(difflib.unified_diff(before, after, "before", "after", lineterm=""))


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        return json.dumps(value, indent=2, sort_keys=True).splitlines()
    return str(value or "").splitlines()
