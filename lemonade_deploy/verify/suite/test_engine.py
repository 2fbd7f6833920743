# SPDX-License-Identifier: Apache-2.0
"""The engine behind lemond: this bundle's vLLM, started by lemond, and nothing left over."""

from __future__ import annotations

import json
from typing import Any

from testinfra.host import Host  # type: ignore[import-untyped]

BUNDLES = "/opt/lemonade-deploy/vllm-rocm"
LAUNCHER = "/opt/lemonade-deploy/bin/vllm-server"


def active(host: Host) -> str:
    return str(host.check_output(f"readlink -f {BUNDLES}/current"))


def test_the_active_bundle_is_a_versioned_folder(host: Host) -> None:
    assert host.file(f"{BUNDLES}/current").is_symlink
    folder = active(host)
    assert folder.startswith(f"{BUNDLES}/vllm")
    assert host.file(f"{folder}/bin/vllm-server").mode & 0o111


def test_lemond_starts_our_launcher(host: Host, settings: dict[str, Any]) -> None:
    assert settings["vllm"]["rocm_bin"] == LAUNCHER
    assert host.file(LAUNCHER).is_file
    assert host.file(LAUNCHER).mode & 0o111


def test_the_engine_runs_from_the_active_bundle(host: Host, engine: dict[str, Any]) -> None:
    assert engine["entry"]["backend_health"] in ("ready", "busy")
    assert engine["program"].startswith(active(host) + "/")


def test_the_engine_was_started_by_lemond(
    host: Host, engine: dict[str, Any], process: dict[str, Any]
) -> None:
    pid, parents = engine["pid"], []
    while pid > 1:
        pid = int(host.check_output(f"sed 's/.*)//' /proc/{pid}/stat").split()[1])
        parents.append(pid)
    assert process["pid"] in parents


def test_no_engine_without_lemond(host: Host) -> None:
    """A killed load can leave an EngineCore behind that holds the GPU's memory."""
    script = (
        f"for p in /proc/[0-9]*; do case $(readlink $p/exe) in {BUNDLES}/*) "
        "grep -q /lemond.service $p/cgroup || echo $p;; esac; done"
    )
    assert host.run(script).stdout.split() == []


def test_no_gpu_fault_since_the_service_started(host: Host, unit: dict[str, str]) -> None:
    """Kernel lines of amdgpu; a fault during the answers above would stand here."""
    since = int(unit["ActiveEnterTimestampMonotonic"])
    done = host.run("journalctl -k -b -o json --no-pager -q")
    signs = (
        "GCVM_L2_PROTECTION_FAULT",
        "[gfxhub] page fault",
        "GPU reset",
        "MES failed",
        "ring gfx",
        "VRAM is lost",
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [
        line["MESSAGE"]
        for line in lines
        if int(line.get("__MONOTONIC_TIMESTAMP", 0)) >= since
        and isinstance(line.get("MESSAGE"), str)
        and any(sign in line["MESSAGE"] for sign in signs)
    ]
    assert not faults, faults[0]
