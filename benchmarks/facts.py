# SPDX-License-Identifier: Apache-2.0
"""What looking at a host costs it: our facts and decision against ``ansible.builtin.setup``.

Both modules are built by Ansible exactly as a run would send them, copied to one simulated
host, and run there in turn; the figure is CPU-seconds of the process and its children
(``resource.getrusage``). Key ``facts_vs_setup`` is the ratio of the medians (ours ÷ setup).

usage: python -m benchmarks.facts [--runs N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from lemonade_deploy.content import link_collection
from lemonade_deploy.lab import Lab

HOST = "bench-facts"
MODULES = {"ours": "lemonade.deploy.preflight", "setup": "ansible.builtin.setup"}

# Runs on the host: executes each payload N times in turn and prints CPU-seconds a run.
MEASURE = """
import json, resource, subprocess, sys
runs, paths = int(sys.argv[1]), sys.argv[2:]
used = {path: [] for path in paths}
for _ in range(runs):
    for path in paths:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, path], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer = json.loads(done.stdout)
        assert "ansible_facts" in answer, done.stdout + done.stderr
        used[path].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
print(json.dumps(used))
"""


def payload(module: str, folder: Path) -> str:
    """The module as Ansible would send it: kept remote files of one local run, as text."""
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(link_collection(folder / "collections")),
        "ANSIBLE_KEEP_REMOTE_FILES": "1",
        "ANSIBLE_REMOTE_TEMP": str(folder / module),
        "ANSIBLE_LOCAL_TEMP": str(folder / "local"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_PIPELINING": "0",
    }
    ansible = str(Path(sys.executable).with_name("ansible"))
    arguments = ["-a", "doctor=true"] if module == MODULES["ours"] else []
    subprocess.run(
        [ansible, "localhost", "-c", "local", "-m", module, *arguments],
        env=environment,
        check=True,
        capture_output=True,
    )
    (built,) = (folder / module).glob("ansible-tmp-*/AnsiballZ_*.py")
    return built.read_text(encoding="utf-8")


def measure(lab: Lab, runs: int) -> dict[str, list[float]]:
    """CPU-seconds of each run on the host, by ``ours`` and ``setup``."""
    with tempfile.TemporaryDirectory() as folder:
        for name, module in MODULES.items():
            done = lab.exec(HOST, ["tee", f"/tmp/{name}.py"], stdin=payload(module, Path(folder)))  # noqa: S108
            assert done.rc == 0, done.stderr
    paths = [f"/tmp/{name}.py" for name in MODULES]  # noqa: S108
    done = lab.exec(HOST, ["sudo", "python3", "-", str(runs), *paths], stdin=MEASURE)
    assert done.rc == 0, done.stderr
    used: dict[str, list[float]] = json.loads(done.stdout)
    return {name: used[path] for name, path in zip(MODULES, paths, strict=True)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    lab = Lab.open()
    lab.up([HOST], "strix-halo-clean", "light")
    used = measure(lab, options.runs)
    medians = {name: statistics.median(values) for name, values in used.items()}
    document = {
        "benchmark": "facts",
        "runs": options.runs,
        "cpu_seconds": medians,
        "raw": used,
        "facts_vs_setup": round(medians["ours"] / medians["setup"], 3),
    }
    if options.json:
        print(json.dumps(document))
    else:
        print(
            f"CPU on the host, median of {options.runs}:"
            f" ours {medians['ours']:.3f} s, setup {medians['setup']:.3f} s"
        )
        print(f"facts_vs_setup {document['facts_vs_setup']}")


if __name__ == "__main__":
    main()
