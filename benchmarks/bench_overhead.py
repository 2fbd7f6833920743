# SPDX-License-Identifier: Apache-2.0
"""Whether ``lemonade-deploy bench`` measures the engine or itself: our tokens/s against vLLM's own counters.

One stream, SmolLM2-135M, real lemond and vLLM's CPU build on a simulated host. The burn test's own code
(bench_request.py) asks through lemond; around each request the engine's counters are read at its own port:
``vllm:generation_tokens_total`` and ``vllm:e2e_request_latency_seconds_sum`` (arrival to last token).
Key ``relative_error`` is |ours - engine's| / engine's over all runs (tokens ÷ seconds each); ``tokens_agree``
says whether both counted the same tokens.

usage: python -m benchmarks.bench_overhead [--runs N] [--max-tokens N] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lemonade_deploy.domain import bench_request
from lemonade_deploy.lab import Lab

HOST = "bench-overhead"
LIMIT = 0.02

# Runs on the host behind the source of bench_request.py, which needs nothing but the standard library.
MEASURE = r"""
import re, sys, urllib.request

def page(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(url, timeout=60).read().decode()

def counters(engine):
    text, found = page(engine + "/metrics"), []
    for name in ("vllm:generation_tokens_total", "vllm:e2e_request_latency_seconds_sum"):
        found.append(sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M)))
    return found

endpoint, runs, max_tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
entry = json.loads(page(endpoint + "/v1/health"))["all_models_loaded"][0]
engine = re.match(r"https?://[^/]+", entry["backend_url"])[0]
name = entry["model_name"]
name = name if name.startswith("user.") else "user." + name
target = Target(endpoint, name, max_tokens)
measure(target, 0)
told = []
for number in range(1, runs + 1):
    before = counters(engine)
    sample = measure(target, number)
    tokens, seconds = (b - a for a, b in zip(before, counters(engine)))
    told.append({"ours": sample.public(), "engine": {"tokens": tokens, "seconds": seconds}})
print(json.dumps(told))
"""


def deploy(lab: Lab) -> str:
    """A served host; gives lemond's endpoint."""
    lab.up([HOST], "strix-halo-clean", "vllm")
    argv = [
        sys.executable,
        "-m",
        "lemonade_deploy",
        "site.yml",
        "-i",
        str(lab.inventory_path),
        "-l",
        HOST,
        "--json",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    endpoint: str = json.loads(done.stdout)["hosts"][HOST]["endpoint"]
    return endpoint


def measured(lab: Lab, endpoint: str, runs: int, max_tokens: int) -> list[dict[str, Any]]:
    """Both sides' numbers of each run."""
    source = Path(bench_request.__file__).read_text(encoding="utf-8") + MEASURE
    done = lab.exec(HOST, ["sudo", "python3", "-", endpoint, str(runs), str(max_tokens)], stdin=source)
    assert done.rc == 0, done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return told


def judge(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The document of the runs."""
    ours = sum(run["ours"]["completion_tokens"] for run in told) / sum(run["ours"]["seconds"] for run in told)
    engine = sum(run["engine"]["tokens"] for run in told) / sum(run["engine"]["seconds"] for run in told)
    return {
        "benchmark": "bench_overhead",
        "runs": len(told),
        "tokens_per_second": {"ours": round(ours, 3), "engine": round(engine, 3)},
        "tokens_agree": all(run["ours"]["completion_tokens"] == run["engine"]["tokens"] for run in told),
        "raw": told,
        "limit": LIMIT,
        "relative_error": round(abs(ours - engine) / engine, 5),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    lab = Lab.open()
    document = judge(measured(lab, deploy(lab), options.runs, options.max_tokens))
    if options.json:
        print(json.dumps(document))
    else:
        rates = document["tokens_per_second"]
        print(f"tokens/s over {options.runs} runs: ours {rates['ours']}, the engine's {rates['engine']}")
        print(f"relative_error {document['relative_error']} (limit {LIMIT})")


if __name__ == "__main__":
    main()
