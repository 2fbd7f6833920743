# SPDX-License-Identifier: Apache-2.0
"""The service: enabled, active, by our unit, as the right user with the GPU's groups, sealed off."""

from __future__ import annotations

from typing import Any

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

FOLDER = "/etc/systemd/system"


def test_service_is_enabled_and_active(unit: dict[str, str]) -> None:
    assert (unit["UnitFileState"], unit["ActiveState"], unit["SubState"]) == ("enabled", "active", "running")


def test_the_unit_is_ours_and_what_stands_on_disk(unit: dict[str, str]) -> None:
    assert unit["FragmentPath"] == f"{FOLDER}/{unit['Id']}"
    assert unit["NeedDaemonReload"] == "no"


def test_the_process_runs_as_the_service_user(host: Host, process: dict[str, Any]) -> None:
    assert process["uid"] == host.user("lemonade").uid


@pytest.mark.parametrize("group", ["render", "video"])
def test_the_process_is_in_the_groups_of_the_gpu(host: Host, process: dict[str, Any], group: str) -> None:
    """The running process, not the user database: a group added later needs a restart."""
    assert host.group(group).gid in process["groups"]


def test_gpu_nodes_are_open_to_the_service_user(host: Host) -> None:
    nodes = host.check_output("ls -d /dev/kfd /dev/dri/renderD* 2>/dev/null || true").split()
    closed = [node for node in nodes if host.run(f"setpriv --reuid lemonade --init-groups test -w {node}").rc]
    assert not closed


def test_the_running_service_may_open_the_gpu(host: Host, unit: dict[str, str]) -> None:
    """Whatever the modes say, systemd's list of devices counts for all in the service's control group."""
    if not host.file("/dev/kfd").exists:
        pytest.fail("/dev/kfd is missing: no driver has a GPU for compute", pytrace=False)
    group = f"/sys/fs/cgroup{unit['ControlGroup']}/cgroup.procs"
    script = f"echo $$ > {group} && exec setpriv --reuid lemonade --init-groups sh -c ': <> /dev/kfd'"
    done = host.run(f'sh -c "{script.replace("$", chr(92) + "$")}"')
    assert done.rc == 0, f"a process of the service cannot open /dev/kfd: {done.stderr.strip()}"


def test_unit_seals_the_service_off(unit: dict[str, str]) -> None:
    assert unit["NoNewPrivileges"] == "yes"
    assert unit["ProtectSystem"] in ("full", "strict")
    assert unit["ProtectHome"] == "yes"
    assert unit["PrivateTmp"] == "yes"
    assert unit["DevicePolicy"] == "closed"


def test_memory_may_be_locked(unit: dict[str, str]) -> None:
    assert unit["LimitMEMLOCK"] == "infinity"


def test_environment_of_the_running_service(process: dict[str, Any], daemon: str) -> None:
    environment = process["environment"]
    assert environment.get("PYTHONNOUSERSITE") == "1"
    if daemon == "vllm":
        assert environment.get("HF_HUB_OFFLINE") == "1"
    else:
        assert environment.get("LEMONADE_DEFAULTS_PATH") == "/etc/lemonade-deploy/lemond-defaults.json"
    assert environment.get("HF_HOME") == "/var/cache/huggingface"
    assert environment.get("HOME") == "/var/lib/lemonade"


def test_lemond_and_vllm_look_for_models_in_one_folder(host: Host) -> None:
    assert host.check_output("readlink -f /var/lib/lemonade/.cache/huggingface") == "/var/cache/huggingface"


def test_temporary_files_and_kernels_lie_on_a_real_disk(host: Host, process: dict[str, Any]) -> None:
    for name in ("TMPDIR", "TRITON_CACHE_DIR"):
        folder = process["environment"][name]
        assert host.check_output(f"stat -f -c %T {folder}") not in ("tmpfs", "ramfs"), folder


def test_secrets_are_for_root_only(host: Host) -> None:
    file = host.file("/etc/lemonade-deploy/lemond.env")
    assert not file.exists or (file.mode, file.user, file.group) == (0o600, "root", "root")


def test_no_secret_in_the_unit_file(host: Host, unit: dict[str, str]) -> None:
    text = host.file(f"{FOLDER}/{unit['Id']}").content_string
    assert not [line for line in text.splitlines() if line.startswith("Environment") and "_KEY=" in line]
    assert "--api-key" not in text
