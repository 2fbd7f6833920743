# SPDX-License-Identifier: Apache-2.0
"""The burn test's report in its three forms, and the verb's own judgement."""

from __future__ import annotations

import html.parser
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

import lemonade_deploy
from benchmarks import bench_overhead
from lemonade_deploy import events
from lemonade_deploy.bench import markdown, page, plots, report
from lemonade_deploy.cli import bench as verb
from lemonade_deploy.domain import bench, bench_stats
from lemonade_deploy.domain.bench_request import Sample
from lemonade_deploy.envelope import Envelope
from lemonade_deploy.errors import UsageError
from lemonade_deploy.results import Failure, HostRun

FAILURE = {
    "stage": "load",
    "cause": "missing-library",
    "message": "A library <b> is missing",
    "remedy": "Do.",
}


def model(name: str, rates: list[float], failure: dict[str, str] | None = None) -> dict[str, Any]:
    """A model whose runs of ten tokens had these rates."""
    samples = [Sample(0.1, 10 / rate, 7, 10, "length") for rate in rates]
    runs = [sample.public() for sample in samples]
    return {
        "model": name,
        "checkpoint": "org/x",
        "recipe": "vllm",
        "status": "failed" if failure else "ok",
        "load": {"cold": None, "warm": None} if failure else {"cold": 31.24, "warm": 9.0},
        "runs": runs,
        "concurrency": [bench.level(n, 10.0 / n, samples, []) for n in (1, 2, 4)] if runs else [],
        "args": ["vllm-server", "--model", "org/x"],
        "failure": failure,
        "tokens_per_second": bench_stats.describe([run["tokens_per_second"] for run in runs]),
        "ttft": bench_stats.describe([run["ttft"] for run in runs]),
    }


def host(*models: dict[str, Any]) -> HostRun:
    """A host that was measured."""
    found = HostRun("halo1", tasks=2, kernel="7.0.0-31-generic")
    found.gpu = [{"gfx": "gfx1151", "cu_count": 40, "driver": "in-tree"}]
    told = {"os": "Ubuntu", "kernel": "7.0.0-31-generic", "lemond": "11.7", "bundle": "vllm1-gfx1151"}
    method = bench.Method().public()
    found.bench = {
        "environment": told,
        "method": method,
        "models": list(models),
        "resumed": [],
        "restored": [],
    }
    return found


EVEN = model("Even", [20.0, 21.0, 20.5, 20.2, 20.7])
PEAKS = model("Peaks|two", [2.5, 47.0, 2.6, 47.7, 2.5])
BROKEN = model("Broken", [], FAILURE)


def test_markdown_has_the_communitys_columns() -> None:
    text = markdown.render([host(EVEN)], "2026-11-30T12:00:00Z")
    assert "| Model | Status | Mean tok/s | ±StdDev | Min | Max | Load Time |" in text
    assert "| Even | ok | 20.5 | 0.4 | 20.0 | 21.0 | 31.2 s cold, 9.0 s warm |" in text
    for value in ("gfx1151, 40 CU", "in-tree", "7.0.0-31-generic", "vllm1-gfx1151", "11.7", "--model org/x"):
        assert value in text


def test_every_run_is_in_the_markdown() -> None:
    text = markdown.render([host(EVEN)], "now")
    rows = [line for line in text.splitlines() if line.endswith("| length |")]
    assert [row.split(" | ")[1] for row in rows] == ["20.00", "21.00", "20.50", "20.20", "20.70"]


def test_two_peaks_never_get_a_mean() -> None:
    row = report.row(PEAKS)
    assert row.cells[2:4] == ("bimodal, see runs: 2.5 (3×), 47.4 (2×)", "-")
    assert "two peaks" in row.remarks[0]
    line = next(one for one in markdown.render([host(PEAKS)], "now").splitlines() if "bimodal" in one)
    assert "20.5" not in line and "Peaks\\|two" in line


def test_a_sample_that_swings_gets_no_mean_in_any_form() -> None:
    swings = model("x", [2.5, 47.7])
    assert report.row(swings).cells[2:6] == ("unstable, see runs", "-", "2.5", "47.7")
    for text in (markdown.render([host(swings)], "now"), page.render([host(swings)], "now")):
        assert "25.1" not in text


def test_an_interrupted_burn_test_is_told_in_sentences() -> None:
    found = host()
    found.failure = Failure("bench", "Measure", "interrupted by the user", "Run it again.")
    console = Console(record=True, width=200)
    verb.show(console, [found], interrupted=True)
    assert f"halo1: interrupted by the user. Run it again. {verb.GOES_ON}" in console.export_text()


def test_outliers_are_named_by_their_run() -> None:
    row = report.row(model("x", [20.0, 20.1, 5.0, 20.2, 19.9]))
    assert row.remarks == ("outliers (run 3: 5.0 tok/s)",)


def test_a_failure_stands_in_the_table_with_its_cause() -> None:
    row = report.row(BROKEN)
    assert row.cells == ("Broken", "failed: missing-library", "-", "-", "-", "-", "-")
    assert row.remarks == ("load failed: A library <b> is missing. Do.",)


class Tags(html.parser.HTMLParser):
    """What a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href", "srcset")]


def test_the_page_needs_nothing_else() -> None:
    text = page.render([host(EVEN, PEAKS, BROKEN)], "now")
    tags = Tags()
    tags.feed(text)
    assert tags.fetched == [] and not tags.names & {"script", "link", "img", "iframe", "b"}
    assert "@import" not in text and "url(" not in text
    assert text.count("<svg") == 2 + 2 * 2  # runs and TTFT of the host; throughput and latency of two models
    assert "A library &lt;b&gt; is missing" in text


def test_plots_are_sound_and_hold_every_value() -> None:
    drawn = plots.strips("Every run", "tok/s", {"A<": [1.0, 2.0, 4.0], "none": []})
    dots = [element for element in ET.fromstring(drawn).iter() if element.tag == "circle"]
    heights = [float(dot.attrib["cy"]) for dot in dots]
    # The axis ends at 5: equal steps in value are equal steps on the page.
    assert len(dots) == 3 and (heights[1] - heights[2]) / (heights[0] - heights[1]) == pytest.approx(
        2, rel=0.02
    )
    line = plots.lines("T", "s", "clients", [plots.Series("p50", [(1, 1.0), (4, 2.0), (16, 3.0)])])
    across = [float(dot.attrib["cx"]) for dot in ET.fromstring(line).iter() if dot.tag == "circle"]
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.2)  # logarithmic
    assert plots.lines("T", "s", "clients", []) == plots.strips("T", "s", {}) == ""
    ET.fromstring(plots.lines("T", "s", "clients", [plots.Series("one", [(8, 0.0)])]))


@pytest.mark.parametrize(("value", "end"), [(0, 1), (1, 1), (1.01, 2), (21, 25), (47.7, 50), (0.03, 0.05)])
def test_an_axis_ends_at_a_round_number(value: float, end: float) -> None:
    assert plots.ceiling(value) == pytest.approx(end)


def test_the_document_keeps_to_its_schema() -> None:
    schema = json.loads((Path(lemonade_deploy.__file__).parent / "schema" / "bench.json").read_text())
    lost = HostRun("lost", failure=Failure("bench", "t", "gone"), unreachable=True)
    hosts = {one.name: report.public(one) for one in (host(EVEN, PEAKS, BROKEN), lost)}
    jsonschema.validate(Envelope("bench", ["bench"]).document(1, hosts), schema)
    jsonschema.validate(Envelope("bench", []).document(64, {}, UsageError("wrong")), schema)


def test_the_collector_takes_what_the_module_returns() -> None:
    class Deaf(events.Listener):
        pass

    collector = events.Collector(["halo1"], Deaf())
    told = {"host": "halo1", "task": "Measure", "res": {"bench": {"models": [EVEN]}, "changes": []}}
    collector({"event": "runner_on_ok", "event_data": told})
    assert collector.hosts["halo1"].bench == {"models": [EVEN]}


def test_what_counts_as_failed() -> None:
    assert not report.failed([host(EVEN, PEAKS)])
    assert report.failed([host(EVEN, BROKEN)])
    assert report.failed([host()])
    assert report.failed([host(EVEN), HostRun("lost")])
    some = model("x", [20.0])
    some["concurrency"][0]["failed"] = 1
    assert report.failed([host(some)])


def test_words_of_the_command_line(tmp_path: Path) -> None:
    assert verb.levels("8, 1,2,1") == [1, 2, 8] and verb.levels("") == []
    assert verb.names(["A,B", "C"]) == ["A", "B", "C"]
    for wrong in ("0", "a", "1;2", "-1", "300"):
        with pytest.raises(UsageError, match="--concurrency"):
            verb.levels(wrong)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UsageError, match="--output"):
        verb.place(blocked / "x", Envelope("bench", []))


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is measured, where that can be known."""
    (tmp_path / "bench.md").mkdir()
    document = Envelope("bench", []).document(0, {})
    with pytest.raises(UsageError, match=r"bench\.md: Is a directory"):
        verb.save(tmp_path, [], document)
    assert json.loads((tmp_path / "bench.json").read_text()) == document
    monkeypatch.setattr(verb.os, "access", lambda *_arguments: False)  # for root all can be written
    with pytest.raises(UsageError, match="it cannot be written"):
        verb.place(tmp_path, Envelope("bench", []))


def test_the_overhead_is_judged_by_all_runs_together() -> None:
    def run(tokens: int, ours: float, engine: float, counted: float) -> dict[str, Any]:
        told = Sample(0.1, ours, 7, tokens, "length").public()
        return {"ours": told, "engine": {"tokens": counted, "seconds": engine}}

    told = bench_overhead.judge([run(100, 5.0, 4.0, 100.0), run(100, 6.0, 6.0, 100.0)])
    assert told["tokens_per_second"] == {"ours": 18.182, "engine": 20.0}
    assert told["relative_error"] == pytest.approx(1 / 11, abs=1e-5) and told["tokens_agree"]
    assert not bench_overhead.judge([run(100, 5.0, 5.0, 99.0)])["tokens_agree"]
