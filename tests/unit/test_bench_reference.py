# SPDX-License-Identifier: Apache-2.0
"""Published figures beside ours: by the very checkpoint, with their source, a wild mean never bare."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from test_bench_report import host, model

from lemonade_deploy.bench import markdown, page, reference, report
from lemonade_deploy.cli import bench as verb
from lemonade_deploy.results import HostRun


def of(checkpoint: str) -> dict[str, Any]:
    return {**model("A", [40.0, 41.0, 40.5]), "checkpoint": checkpoint}


def test_every_line_names_a_source_that_can_be_looked_up() -> None:
    lines = reference.published()
    assert len(lines) == 19
    for line in lines:
        assert line.source["url"].startswith("https://github.com/") and line.source["date"]
        assert (line.mean is None) == (line.status != "ok")
        assert (
            line.low is None or line.high is None or line.mean is None or line.low <= line.mean <= line.high
        )


def test_the_sample_that_swings_is_no_rate() -> None:
    first = reference.of("Qwen/Qwen3-1.7B")[0]
    assert (first.mean, first.stddev, first.low, first.high) == (25.1, 26.0, 2.5, 47.7)
    assert first.cells[0] == "no steady rate" and first.cells[2:4] == ("2.5", "47.7")


@pytest.mark.parametrize("checkpoint", ["Qwen/Qwen3-1.7B-GGUF", "Qwen3-1.7B", "", "other/Qwen3-1.7B"])
def test_relatives_are_not_compared(checkpoint: str) -> None:
    assert reference.of(checkpoint) == []


def test_names_that_leave_the_checkpoint_open_match_nothing() -> None:
    open_names = [line.name for line in reference.published() if line.checkpoint is None]
    assert open_names == ["Llama-3.2-1B-Instruct-vllm", "Llama-3.2-3B-Instruct-vllm"]


def shown(found: HostRun) -> str:
    out = io.StringIO()
    verb.show(Console(file=out, width=200), [found])
    return out.getvalue()


def test_all_forms_show_them_beside_ours() -> None:
    found = host(of("Qwen/Qwen3-8B"))
    for text in (markdown.render([found], "now"), page.render([found], "now")):
        assert "12.3" in text and "40.5" in text
        assert "vllm-results.json" in text and "vLLM 0.19.0" in text
    assert "published: 12.3 ± 0.0" in shown(found)
    (told,) = report.public(found)["models"][0]["published"][:1]
    assert (told["mean"], told["load_seconds"]) == (12.3, 24.7)
    none = host(of("org/x"))
    assert "Published" not in markdown.render([none], "now") and "published" not in shown(none)


def test_a_model_that_failed_there_is_told_so() -> None:
    assert "load failed" in markdown.render([host(of("Qwen/Qwen3.5-0.8B"))], "now")
