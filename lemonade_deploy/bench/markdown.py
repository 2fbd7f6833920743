# SPDX-License-Identifier: Apache-2.0
"""The report in Markdown, in the columns that people publish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lemonade_deploy.bench import reference, report
from lemonade_deploy.results import HostRun


def render(hosts: Sequence[HostRun], started: str) -> str:
    """The whole document."""
    lines = ["# Burn test", "", f"Measured {started} by `lemonade-deploy bench`.", ""]
    for host in hosts:
        lines += [f"## {host.name}", ""]
        if host.failure:
            lines += [f"Not measured: {host.failure.message}", ""]
        if host.bench:
            lines += _host(host, host.bench)
    return "\n".join(lines).rstrip() + "\n"


def _host(host: HostRun, told: Mapping[str, Any]) -> Iterator[str]:
    yield from _table(("", "environment"), report.environment(host).items())
    rows = [report.row(model) for model in told["models"]]
    yield from _table(report.COLUMNS, (row.cells for row in rows))
    remarks = [f"- {row.cells[0]}: {remark}" for row in rows for remark in row.remarks]
    yield from [*remarks, ""] if remarks else []
    yield from _method(told["method"])
    beside = report.beside(told["models"])
    if beside:
        yield from ["Published by others, on machines of their own:", ""]
        yield from _table(reference.COLUMNS, beside)
        yield from [*(f"- {line}" for line in reference.sources(told["models"])), ""]
    for model in told["models"]:
        yield from _model(model)


def _method(method: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{method['runs']} runs after {method['warmup']} warm-ups, up to {method['max_tokens']} tokens, "
        "greedy, streamed, each prompt another. tok/s: tokens by usage ÷ wall clock of the request; "
        "±: sample standard deviation. Cold load: the model's files were not in the page cache."
    )
    yield ""


def _model(model: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {model['model']}"
    yield ""
    if model["args"]:
        yield from [f"`{' '.join(model['args'])}`", ""]
    yield from _table(
        ("Run", "tok/s", "decode tok/s", "TTFT s", "wall s", "tokens in", "tokens out", "finish"),
        (
            (
                str(number),
                f"{run['tokens_per_second']:.2f}",
                "-" if run["decode_tokens_per_second"] is None else f"{run['decode_tokens_per_second']:.2f}",
                f"{run['ttft']:.3f}",
                f"{run['seconds']:.3f}",
                str(run["prompt_tokens"]),
                str(run["completion_tokens"]),
                run["finish_reason"],
            )
            for number, run in enumerate(model["runs"], 1)
        ),
    )
    yield from _table(
        ("Clients", "Requests", "Failed", "Throughput tok/s", "p50 s", "p95 s", "TTFT p50 s"),
        (
            (
                str(level["clients"]),
                str(level["requests"]),
                str(level["failed"]),
                f"{level['throughput']:.1f}",
                f"{level['latency_p50']:.2f}",
                f"{level['latency_p95']:.2f}",
                f"{level['ttft_p50']:.3f}",
            )
            for level in model["concurrency"]
        ),
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Nothing where there are no rows."""
    body = [list(row) for row in rows]
    if not body:
        return
    for cells in (header, ["---"] * len(header), *body):
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
    yield ""
