# SPDX-License-Identifier: Apache-2.0
"""The module itself: what it returns, when it fails, and that its arguments are those it documents."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from trees import Tree, bare, dirty, strix_halo

from lemonade_deploy.content import link_collection

NAME = "ansible_collections.lemonade.deploy.plugins.modules.preflight"


@pytest.fixture
def module(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, imported as Ansible imports it."""
    monkeypatch.syspath_prepend(str(link_collection(tmp_path_factory.mktemp("collections"))))
    before = set(sys.modules)
    yield importlib.import_module(NAME)
    for name in set(sys.modules) - before:
        if name.startswith("ansible_collections"):
            del sys.modules[name]


def run(
    module: ModuleType,
    tree: Tree,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    **arguments: Any,
) -> dict[str, Any]:
    """The JSON that the module prints for the host *tree*."""
    host = importlib.import_module(NAME.replace("modules.preflight", "module_utils.host"))
    monkeypatch.setattr(module, "Host", lambda: host.Host(str(tree.root), tree.host._runner))
    monkeypatch.setattr(module, "ask_apt", lambda _host: lambda _facts, _wishes: ([], ["E: no network"]))
    with patch_module_args({"min_disk_gib": 0, **arguments}), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_good_host(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = strix_halo(tmp_path)
    before = tree.snapshot()
    result = run(module, tree, monkeypatch, capsys, _ansible_check_mode=True)
    assert tree.snapshot() == before
    # The default release's ROCm is newer than AMD's table of kernels: that alone is told.
    assert [found["id"] for found in result["findings"]] == ["rocm-kernel-pair"]
    assert (result["changed"], result["changes"]) == (False, [])
    assert result["kernel"] == "7.0.0-31-generic"
    told = result["ansible_facts"]["lemonade_deploy"]
    assert set(told) == {"facts", "decision", "findings"}
    assert set(told["decision"]) == {"driver", "repository", "kernel", "release", "gtt", "reasons"}
    (gpu,) = result["gpu"]
    shape = (
        "node gfx cu_count driver cwsr_size ctl_stack_size expected_cwsr_size expected_ctl_stack_size cwsr"
    )
    assert [gpu[name] for name in shape.split()] == [
        1,
        "gfx1151",
        40,
        "in-tree",
        19185664,
        16384,
        19185664,
        16384,
        "ok",
    ]


def test_a_host_without_a_gpu_fails_with_a_remedy(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(module, bare(tmp_path), monkeypatch, capsys)
    assert result["failed"]
    assert result["failure"]["layer"] == "preflight" and result["failure"]["remedy"]
    assert result["failure"]["message"] == "No AMD GPU is on the PCI bus."
    assert [found["id"] for found in result["findings"]] == ["no-supported-gpu"]
    assert (result["gpu"], result["kernel"]) == ([], "7.0.0-31-generic")


@pytest.mark.parametrize(
    ("locked", "said"),
    [([], "There is no lock file /inv/l.lock"), (["vllm0.1-rocm7-gfx1151"], "/inv/l.lock has no entry for")],
)
def test_a_release_that_is_not_locked_stops_before_anything_is_changed(
    module: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    locked: list[str],
    said: str,
) -> None:
    asked = {"lock_file": "/inv/l.lock", "inventory": "/inv/hosts.yml"}
    result = run(module, strix_halo(tmp_path), monkeypatch, capsys, locked=locked, **asked)
    assert result["failure"]["message"].startswith(said)
    assert "depot lock" in result["failure"]["remedy"] and "/inv/hosts.yml" in result["failure"]["remedy"]
    assert "failed" not in run(module, strix_halo(tmp_path), monkeypatch, capsys, locked=locked, doctor=True)
    there = run(module, strix_halo(tmp_path), monkeypatch, capsys, locked=locked, lock_there=True, **asked)
    assert "/inv/l.lock has no entry for" in there["failure"]["message"]  # a lock without any release, too


def test_a_locked_release_goes_on(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tag = run(module, strix_halo(tmp_path), monkeypatch, capsys)["ansible_facts"]["lemonade_deploy"][
        "decision"
    ]["release"]["tag"]
    assert "failed" not in run(module, strix_halo(tmp_path), monkeypatch, capsys, locked=[tag])


def decided(module: ModuleType, tree: Tree, *tools: Any, **asked: Any) -> str:
    told = run(module, tree, *tools, doctor=True, **asked)["ansible_facts"]["lemonade_deploy"]
    tag: str = told["decision"]["release"]["tag"]
    return tag


def test_a_release_that_is_unqualified_stops_before_anything_is_changed(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, tools = strix_halo(tmp_path), (monkeypatch, capsys)
    tag = decided(module, tree, *tools)
    asked = {"locked": [tag], "unqualified": [tag]}
    result = run(module, tree, *tools, **asked)
    assert result["failure"]["message"].startswith(f"Release {tag} is known to fail: upstream's own")
    assert "vllm_rocm_accept_unqualified: [vllm0." in result["failure"]["remedy"]
    assert [found["id"] for found in result["findings"]] == ["rocm-kernel-pair", "bundle-unqualified"]
    for name in (tag, tag.removesuffix("-gfx1151")):
        assert "failed" not in run(module, tree, *tools, vllm_rocm_accept_unqualified=[name], **asked)
    # Of another release nothing follows; without the bundle's layer nobody is stopped; doctor only says it.
    assert "failed" not in run(module, tree, *tools, locked=[tag], unqualified=["vllm0.1-rocm7-gfx1151"])
    assert "failed" not in run(module, tree, *tools, unqualified=[tag])
    assert "failed" not in run(module, tree, *tools, doctor=True, **asked)


def test_a_release_known_to_fail_stops_too(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, base = strix_halo(tmp_path), "vllm0.20.1-rocm7.12.0"
    asked = {"vllm_rocm_release": base, "locked": [f"{base}-gfx1151"]}
    result = run(module, tree, monkeypatch, capsys, **asked)
    assert "lacks a HIP symbol" in result["failure"]["message"]
    assert [found["id"] for found in result["findings"]] == ["rocm-kernel-pair", "bundle-known-bad"]
    asked["vllm_rocm_accept_unqualified"] = [base]
    assert "failed" not in run(module, tree, monkeypatch, capsys, **asked)


def test_doctor_only_reports(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(module, bare(tmp_path), monkeypatch, capsys, doctor=True)
    assert "failed" not in result
    assert result["ansible_facts"]["lemonade_deploy"]["decision"] is None
    assert [found["id"] for found in result["findings"]] == ["no-supported-gpu"]


def test_without_a_kernel_it_fails_early(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(module, dirty(tmp_path), monkeypatch, capsys)
    assert result["failed"] and "E: no network" in result["msg"]
    kept = run(module, dirty(tmp_path / "b"), monkeypatch, capsys, kernel_source="keep")
    assert kept["ansible_facts"]["lemonade_deploy"]["decision"]["kernel"]["action"] == "keep"


def test_arguments_are_documented_with_their_defaults(module: ModuleType) -> None:
    documented = yaml.safe_load(module.DOCUMENTATION)["options"]
    assert set(documented) == set(module.arguments())
    for name, spec in module.arguments().items():
        for key in ("type", "default", "choices"):
            assert documented[name].get(key) == spec.get(key), (name, key)
