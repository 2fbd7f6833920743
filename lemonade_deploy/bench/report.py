# SPDX-License-Identifier: Apache-2.0
"""What all forms of the report say: rows of the table, remarks, the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lemonade_deploy.bench import reference
from lemonade_deploy.domain import bench_stats
from lemonade_deploy.results import HostRun

# The columns of the tables that people publish for these machines.
COLUMNS = ("Model", "Status", "Mean tok/s", "±StdDev", "Min", "Max", "Load Time")
_FLAGS = {
    "bimodal": "two peaks: a mean would say nothing, see the runs",
    "outliers": "outliers",
    "unstable": "wide spread (standard deviation above a quarter of the mean), see the runs",
}


@dataclass(frozen=True)
class Row:
    """A model's line: texts of :data:`COLUMNS`, and what must be said below."""

    cells: tuple[str, ...]
    remarks: tuple[str, ...]


def public(host: HostRun) -> dict[str, Any]:
    """The JSON form of a host in the burn test's document."""
    told = host.bench or {}
    return {
        "status": host.status,
        "failure": host.public()["failure"],
        "environment": environment(host),
        "method": told.get("method"),
        "models": [{**model, "published": published(model)} for model in told.get("models") or []],
        "resumed": list(told.get("resumed") or []),
        "restored": list(told.get("restored") or []),
    }


def environment(host: HostRun) -> dict[str, str]:
    """What the numbers hold for, in the order it is shown."""
    told = (host.bench or {}).get("environment") or {}
    gpus = [f"{gpu.get('gfx')}, {gpu.get('cu_count')} CU" for gpu in host.gpu]
    drivers = dict.fromkeys(str(gpu.get("driver")) for gpu in host.gpu)
    return {
        "gpu": "; ".join(gpus) or "none",
        "driver": ", ".join(drivers) or "none",
        "kernel": str(told.get("kernel") or host.kernel or ""),
        "os": str(told.get("os") or ""),
        "bundle": str(told.get("bundle") or ""),
        "lemond": str(told.get("lemond") or ""),
    }


def published(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What others have published of the same checkpoint."""
    return [line.public() for line in reference.of(str(model["checkpoint"]))]


def beside(models: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Published lines with our rate beside each (columns: reference.COLUMNS)."""
    return list(reference.rows(models, [row(model).cells[2] for model in models]))


def rates(model: Mapping[str, Any]) -> list[float]:
    """Tokens per second of each run, in the order they were made."""
    return [float(run["tokens_per_second"]) for run in model["runs"]]


def row(model: Mapping[str, Any]) -> Row:
    """The line of a model; a sample with two peaks, or that swings, shows no mean and no deviation."""
    summary = model["tokens_per_second"]
    failure = model["failure"]
    cells = [
        str(model["model"]),
        f"{model['status']}: {failure['cause']}" if failure else str(model["status"]),
    ]
    if summary is None:
        cells += ["-", "-", "-", "-"]
    else:
        no_mean = summary["groups"] or "unstable" in summary["flags"]
        deviation = "-" if no_mean or summary["stddev"] is None else f"{summary['stddev']:.1f}"
        mean = bench_stats.shown(summary, rates(model))
        cells += [mean, deviation, f"{summary['min']:.1f}", f"{summary['max']:.1f}"]
    cells.append(_load(model["load"]))
    return Row(tuple(cells), tuple(_remarks(model)))


def _load(load: Mapping[str, float | None]) -> str:
    told = [f"{load[key]:.1f} s {key}" for key in ("cold", "warm") if load.get(key) is not None]
    return ", ".join(told) or "-"


def _remarks(model: Mapping[str, Any]) -> Iterator[str]:
    failure = model["failure"]
    if failure:
        yield f"{failure['stage']} failed: {failure['message'].rstrip('.')}. {failure['remedy']}".strip()
    summary = model["tokens_per_second"]
    for flag in summary["flags"] if summary else []:
        values = [f"run {at + 1}: {rates(model)[at]:.1f}" for at in summary["outliers"]]
        yield _FLAGS[flag] + (f" ({', '.join(values)} tok/s)" if flag == "outliers" else "")
    for level in model["concurrency"]:
        if level["failed"]:
            yield (
                f"{level['clients']} clients: {level['failed']} of {level['requests']} requests failed: "
                f"{level['error']}"
            )


def failed(hosts: Sequence[HostRun]) -> bool:
    """Whether a host was not measured, or a model, or a request."""
    for host in hosts:
        models = (host.bench or {}).get("models") or []
        if host.failure or host.unreachable or not models:
            return True
        if any(model["status"] != "ok" or any(c["failed"] for c in model["concurrency"]) for model in models):
            return True
    return False
