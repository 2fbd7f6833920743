# SPDX-License-Identifier: Apache-2.0
"""The engine: this bundle's vLLM, started by the service, and nothing left over."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from lemonade_deploy.domain.vllm_home import LEMOND_FOLDERS, VERSION
from lemonade_deploy.verify import kernel_log

BUNDLES = "/opt/lemonade-deploy/vllm-rocm"
RECORD, ROLLED_BACK = ".lemonade-deploy.json", ".lemonade-deploy.rolled-back"
LAUNCHER = "/opt/lemonade-deploy/bin/vllm-server"


def by_lemond(settings: dict[str, Any], daemon: str) -> bool:
    """Whether lemond installs its vLLM itself: then its setting holds a release tag, no path."""
    return daemon != "vllm" and not str(settings["vllm"]["rocm_bin"]).startswith("/")


@pytest.fixture
def active(host: Host, settings: dict[str, Any], daemon: str) -> str:
    """The folder of the release that serves."""
    if not by_lemond(settings, daemon):
        return str(host.check_output(f"readlink -f {BUNDLES}/current"))
    places = [folder for folder in LEMOND_FOLDERS if host.file(f"{folder}/{VERSION}").exists]
    assert places, "lemond has installed no vLLM"
    return places[0]


def laid_down(host: Host, active: str) -> str:
    """The tag of the release that the kit laid down in the folder, by the record that it wrote last."""
    assert host.file(f"{BUNDLES}/current").is_symlink
    folder = active.removeprefix(f"{BUNDLES}/")
    record = host.file(f"{active}/{RECORD}")
    assert record.exists, (
        f"{active} is active, and was not laid down by lemonade-deploy ({RECORD} is missing)"
    )
    tag = str(json.loads(record.content_string)["tag"])
    # Another build of a release that is there already gets a number.
    fits = re.fullmatch(re.escape(tag) + r"(\.\d+)?", folder) is not None
    assert fits, f"{active} holds the record of {tag}"
    return tag


def came_by_rollback(host: Host, active: str) -> bool:
    """Whether a rollback left another bundle for this one."""
    name = active.removeprefix(f"{BUNDLES}/")
    left = host.run(f"cat {BUNDLES}/*/{ROLLED_BACK}").stdout.splitlines()
    return name in [line.strip() for line in left]


def test_the_active_bundle_is_the_wanted_release(
    host: Host, active: str, settings: dict[str, Any], daemon: str, wanted_release: str, record_property: Any
) -> None:
    """As the inventory names it, with or without its family; "" leaves it to the kit."""
    if by_lemond(settings, daemon):
        assert host.file(f"{active}/{VERSION}").content_string.strip() == settings["vllm"]["rocm_bin"]
    else:
        tag = laid_down(host, active)
        if wanted_release and wanted_release not in (tag, tag.rpartition("-")[0]):
            why = f"{tag} is active, the inventory wants {wanted_release}"
            assert came_by_rollback(host, active), why
            record_property("warning", f"{why}: somebody rolled back")
    assert host.file(f"{active}/bin/vllm-server").mode & 0o111


def test_the_service_starts_our_launcher(
    host: Host, settings: dict[str, Any], daemon: str, request: pytest.FixtureRequest
) -> None:
    if by_lemond(settings, daemon):
        return  # lemond starts the bundle's own launcher: the test above
    if daemon == "vllm":
        assert request.getfixturevalue("command")[0] == LAUNCHER
    else:
        assert settings["vllm"]["rocm_bin"] == LAUNCHER
    assert host.file(LAUNCHER).is_file
    assert host.file(LAUNCHER).mode & 0o111


def test_the_engine_runs_from_the_active_bundle(engine: dict[str, Any], active: str) -> None:
    assert engine["entry"]["backend_health"] in ("ready", "busy")
    assert engine["program"].startswith(active + "/")


def test_the_engine_was_started_by_the_service(
    host: Host, engine: dict[str, Any], process: dict[str, Any]
) -> None:
    pid = engine["pid"]
    parents = [pid]
    while pid > 1:
        pid = int(host.check_output(f"sed 's/.*)//' /proc/{pid}/stat").split()[1])
        parents.append(pid)
    assert process["pid"] in parents


def test_only_one_daemon_runs(host: Host, daemon: str) -> None:
    other = {"lemond": "lemonade-vllm", "vllm": "lemond"}[daemon]
    assert host.run(f"systemctl is-active {other}").stdout.strip() != "active"


def test_no_engine_without_the_service(host: Host, unit: dict[str, str]) -> None:
    """A killed load can leave an EngineCore behind that holds the GPU's memory."""
    places = "|".join(f"{folder}/*" for folder in (BUNDLES, *LEMOND_FOLDERS))
    script = (
        f"for p in /proc/[0-9]*; do case $(readlink $p/exe) in {places}) "
        f"grep -q /{unit['Id']} $p/cgroup || echo $p;; esac; done"
    )
    assert host.run(script).stdout.split() == []


def test_no_gpu_fault_since_the_service_started(
    host: Host, unit: dict[str, str], record_property: Any
) -> None:
    """Kernel lines of amdgpu; a fault during the answers above would stand here."""
    log = kernel_log.read(lambda command: str(host.run(command).stdout))
    if not log.readable:
        why = "not tested: no line of the kernel's log can be read here, neither its journal nor dmesg"
        record_property("warning", why)
        pytest.skip(why)
    faults = kernel_log.faults(log, int(unit["ActiveEnterTimestampMonotonic"]))
    record_property("kernel_log", "\n".join(faults[:10]))
    assert not faults, faults[0]
