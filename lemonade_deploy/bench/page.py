# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from lemonade_deploy.bench import plots, reference, report
from lemonade_deploy.bench.plots import Series
from lemonade_deploy.results import HostRun

_STYLE = """
:root{--ink:#1b1f24;--soft:#66707a;--line:#d9dee3;--back:#fff;--c0:#0b6e99;--c1:#b3541e;--c2:#3a7d34;--c3:#7a4fa3}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa4ae;--line:#363d45;--back:#15181b;--c0:#5cc0ea;
--c1:#f0a36b;--c2:#86cf7e;--c3:#c5a0ea}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:1040px;
margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}
th,td{border-bottom:1px solid var(--line);padding:.3rem .8rem;text-align:left;
font-variant-numeric:tabular-nums}
code{font-size:12px;overflow-wrap:anywhere;color:var(--soft)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(340px,1fr));gap:1rem}
svg{width:100%;height:auto}svg text{font-size:11px;fill:var(--soft)}svg .title{font-size:13px;fill:var(--ink)}
.grid{stroke:var(--line)}.median{stroke:var(--ink);stroke-width:2}polyline{fill:none;stroke-width:2}
.l0{stroke:var(--c0)}.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}
.d0{fill:var(--c0)}.d1{fill:var(--c1)}.d2{fill:var(--c2)}.d3{fill:var(--c3)}
svg .t0{fill:var(--c0)}svg .t1{fill:var(--c1)}svg .t2{fill:var(--c2)}svg .t3{fill:var(--c3)}
.failed{color:#c62828}
"""


def render(hosts: Sequence[HostRun], started: str) -> str:
    """The whole page."""
    body = "".join(part for host in hosts for part in _host(host))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>Burn test</title>'
        f"<style>{_STYLE}</style></head><body><h1>Burn test</h1>"
        f"<p>Measured {escape(started)} by <code>lemonade-deploy bench</code>.</p>{body}</body></html>\n"
    )


def _host(host: HostRun) -> Iterator[str]:
    yield f"<h2>{escape(host.name)}</h2>"
    if host.failure:
        yield f'<p class="failed">Not measured: {escape(host.failure.message)}</p>'
    if not host.bench:
        return
    models = host.bench["models"]
    yield _table(("", "environment"), report.environment(host).items())
    rows = [report.row(model) for model in models]
    yield _table(report.COLUMNS, (row.cells for row in rows))
    remarks = [f"<li>{escape(row.cells[0])}: {escape(text)}</li>" for row in rows for text in row.remarks]
    yield f"<ul>{''.join(remarks)}</ul>" if remarks else ""
    beside = report.beside(models)
    if beside:
        yield "<h3>Published by others, on machines of their own</h3>"
        yield _table(reference.COLUMNS, beside)
        yield f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in reference.sources(models))}</ul>"
    samples = {str(model["model"]): report.rates(model) for model in models}
    first = {str(model["model"]): [float(run["ttft"]) for run in model["runs"]] for model in models}
    yield '<div class="plots">'
    yield plots.strips("Every run", "tok/s", samples)
    yield plots.strips("Time to first token", "s", first)
    yield "</div>"
    for model in models:
        yield from _model(model)


def _model(model: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h3>{escape(str(model['model']))}</h3>"
    if model["args"]:
        yield f"<p><code>{escape(' '.join(model['args']))}</code></p>"
    levels = model["concurrency"]

    def series(name: str, key: str) -> Series:
        return Series(name, [(level["clients"], level[key]) for level in levels])

    yield '<div class="plots">'
    yield plots.lines("Throughput", "tok/s", "clients", [series("all clients", "throughput")])
    yield plots.lines("Latency", "s", "clients", [series("p50", "latency_p50"), series("p95", "latency_p95")])
    yield "</div>"
    runs = [
        (
            str(number),
            f"{run['tokens_per_second']:.2f}",
            f"{run['ttft']:.3f}",
            f"{run['seconds']:.3f}",
            str(run["completion_tokens"]),
        )
        for number, run in enumerate(model["runs"], 1)
    ]
    if runs:
        yield _table(("Run", "tok/s", "TTFT s", "wall s", "tokens"), runs)


def _table(header: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
