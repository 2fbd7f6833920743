# SPDX-License-Identifier: Apache-2.0
"""The burn test and the unit's two levels on a host that serves (light engine, real lemond and systemd)."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import lemonade_deploy
from lemonade_deploy.lab import Lab

from .kit import host_of, kit

pytestmark = [pytest.mark.lab, pytest.mark.full]

HOST = "it-bench"
MODEL = "user.SmolLM2-135M"
NODE = "/sys/class/kfd/kfd/topology/nodes/1/properties"
ENGINE = "/opt/lemonade-deploy/bin/vllm-server"


def sh(lab: Lab, script: str) -> str:
    """A script as root on the host; it must end well."""
    done = lab.exec(HOST, ["sudo", "sh", "-ec", script])
    assert done.rc == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def served(lab: Lab) -> Lab:
    """A lab whose host serves."""
    lab.up([HOST], "strix-halo-clean", "light")
    ran = kit("site.yml", "-i", str(lab.inventory_path), "-l", HOST, "--json")
    host = host_of(ran, HOST)
    assert host["failure"] is None, host["failure"]
    return lab


def burn(lab: Lab, folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """A short burn test; its exit code and the host's part of the document."""
    where = ["-i", str(lab.inventory_path), "-l", HOST, "--output", str(folder), "--json"]
    short = ["--runs", "4", "--warmup", "1", "--max-tokens", "30", "--concurrency", "1,3"]
    ran = kit("bench", *where, *short, *more)
    host = host_of(ran, HOST)
    schema = json.loads((Path(lemonade_deploy.__file__).parent / "schema" / "bench.json").read_text())
    jsonschema.validate(ran.document, schema)
    assert json.loads((folder / "bench.json").read_text()) == ran.document
    return ran.rc, host


def test_a_burn_test(served: Lab, tmp_path: Path) -> None:
    rc, host = burn(served, tmp_path)
    assert (rc, host["failure"]) == (0, None)
    (model,) = host["models"]
    assert model["model"] == MODEL and len(model["runs"]) == 4
    assert all(0 < run["ttft"] < run["seconds"] for run in model["runs"])
    assert {run["completion_tokens"] for run in model["runs"]} == {30}
    assert [(one["clients"], one["requests"]) for one in model["concurrency"]] == [(1, 2), (3, 6)]
    assert host["environment"]["gpu"] == "gfx1151, 40 CU" and "simulated" in host["environment"]["os"]
    assert host["restored"] == [MODEL.removeprefix("user.")] or host["restored"] == [MODEL]
    assert "| Model | Status | Mean tok/s |" in (tmp_path / "bench.md").read_text()
    assert "<svg" in (tmp_path / "bench.html").read_text()
    sh(served, "test ! -e /var/lib/lemonade-deploy/bench.json")


def test_a_model_that_does_not_load_is_told_by_its_cause(served: Lab, tmp_path: Path) -> None:
    words = "ImportError: libmoon.so.7: cannot open shared object file: No such file or directory"
    broken = f"#!/bin/sh\necho '{words}' >&2\nexit 1\n"
    sh(served, f"mv {ENGINE} /root/; printf %b {shlex.quote(broken)} > {ENGINE}; chmod 755 {ENGINE}")
    rc, host = burn(served, tmp_path)
    sh(served, f"mv /root/vllm-server {ENGINE}")
    (model,) = host["models"]
    assert rc == 1 and model["status"] == "failed"
    assert model["failure"]["cause"] == "missing-library"
    assert "libmoon.so.7" in model["failure"]["message"]
    assert "libmoon.so.7" in (tmp_path / "bench.md").read_text()


@pytest.mark.parametrize("level", ["strict", "compat"])
def test_the_hardened_unit_answers(served: Lab, level: str) -> None:
    where = [
        "-i",
        str(served.inventory_path),
        "-l",
        HOST,
        "-e",
        f"lemonade_server_hardening={level}",
        "--json",
    ]
    host = host_of(kit("site.yml", *where), HOST)
    assert host["failure"] is None and host["inference"]["completion_tokens"] > 0
    told = sh(served, "systemd-analyze security --offline=true /etc/systemd/system/lemond.service")
    exposure = re.search(r"Overall exposure level for lemond.service: ([\d.]+)", told)
    assert exposure is not None and float(exposure[1]) <= 2.5
    assert host_of(kit("site.yml", *where, "--check"), HOST)["changed"] == []


def test_a_wrong_kernel_is_told_in_the_journal(served: Lab) -> None:
    sh(served, f"cp {NODE} /root/properties; sed -i 's/^cwsr_size .*/cwsr_size 13942784/' {NODE}")
    # Not `systemctl status`: once systemd has given up it may show its own last lines only.
    script = """systemctl reset-failed lemond
        systemctl restart lemond && exit 1
        until systemctl is-failed -q lemond; do sleep 0.5; done
        journalctl -u lemond -n 40 -o cat --no-pager"""
    told = sh(served, script)
    sh(served, f"cp /root/properties {NODE}; systemctl reset-failed lemond; systemctl restart lemond")
    assert "gpu-check: cwsr_size 13942784" in told and "lemonade-deploy site.yml" in told
