# SPDX-License-Identifier: Apache-2.0
"""The script before lemond's start, run by a real shell on fixture trees; and the unit that calls it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml

from lemonade_deploy.domain import cwsr, gpu_check, paths

ROOT = Path(__file__).resolve().parents[2]
GOOD = cwsr.sizes("gfx1151", 40)
OLD = cwsr.sizes("gfx1151", 40, cwsr.VGPR_DEFAULT)


def node(version: int = 110501, simds: int = 80, **more: int) -> str:
    """A KFD node's properties."""
    values = {"cpu_cores_count": 0, "simd_count": simds, "simd_per_cu": 2, "num_xcc": 1}
    values.update(gfx_target_version=version, **more)
    return "".join(f"{name} {value}\n" for name, value in values.items())


def check(tmp_path: Path, *nodes: str, device: bool = True) -> subprocess.CompletedProcess[str]:
    """The script's answer on a host with these nodes."""
    for number, text in enumerate(nodes):
        (tmp_path / "nodes" / str(number)).mkdir(parents=True)
        (tmp_path / "nodes" / str(number) / "properties").write_text(text)
    if device:
        (tmp_path / "kfd").write_text("")
    # The wait is real: 30 s are not needed to see its end.
    text = gpu_check.script().replace(f"left={gpu_check.WAIT}\n", "left=0\n")
    argv = ["sh", "-c", text, "check", str(tmp_path / "kfd"), str(tmp_path / "nodes")]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)


CPU = "cpu_cores_count 32\nsimd_count 0\ngfx_target_version 0\n"


@pytest.mark.parametrize("cus", [40, 32, 16])
def test_right_numbers_pass(tmp_path: Path, cus: int) -> None:
    good = cwsr.sizes("gfx1151", cus)
    text = node(simds=2 * cus, cwsr_size=good.cwsr_size, ctl_stack_size=good.ctl_stack_size)
    done = check(tmp_path, CPU, text)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, "does not export the CWSR sizes"),
        ({"cwsr_size": GOOD.cwsr_size}, "does not export"),
        ({"cwsr_size": OLD.cwsr_size, "ctl_stack_size": OLD.ctl_stack_size}, f"{GOOD.cwsr_size} and "),
        ({"cwsr_size": GOOD.cwsr_size - 1, "ctl_stack_size": GOOD.ctl_stack_size}, "for 40 compute units"),
        ({"cwsr_size": GOOD.cwsr_size, "ctl_stack_size": GOOD.ctl_stack_size - 1}, "for 40 compute units"),
    ],
)
def test_wrong_numbers_refuse_with_a_remedy(tmp_path: Path, numbers: dict[str, int], says: str) -> None:
    done = check(tmp_path, CPU, node(**numbers))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(gpu_check.PREFIX)
    assert says in line and "lemonade-deploy site.yml" in line


def test_every_gpu_is_judged(tmp_path: Path) -> None:
    good = node(cwsr_size=GOOD.cwsr_size, ctl_stack_size=GOOD.ctl_stack_size)
    assert check(tmp_path, CPU, good, node()).returncode == 1


@pytest.mark.parametrize(
    "text", [node(110000), node(120001), node(simds=0, cwsr_size=1, ctl_stack_size=1), CPU]
)
def test_gpus_that_work_without_the_numbers_pass(tmp_path: Path, text: str) -> None:
    assert check(tmp_path, text).returncode == 0


def test_no_device(tmp_path: Path) -> None:
    done = check(tmp_path, device=False)
    assert done.returncode == 1
    assert "kfd is not there" in done.stderr and "lemonade-deploy doctor" in done.stderr


def test_a_device_that_is_closed() -> None:
    # A file that only root can read; root can open everything, so somebody else asks.
    user = 65534 if os.geteuid() == 0 else None
    argv = ["sh", "-c", gpu_check.script(), "check", "/etc/shadow", "/nowhere"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, user=user, cwd="/")
    assert done.returncode == 1
    assert "cannot open /etc/shadow" in done.stderr and "DeviceAllow=char-kfd" in done.stderr


def test_a_device_whose_mode_allows_what_its_open_refuses(tmp_path: Path) -> None:
    """As with systemd's list of devices: only an open tells. A folder stands in for the node here."""
    (tmp_path / "kfd").mkdir()
    done = check(tmp_path, CPU, device=False)
    assert done.returncode == 1
    assert "cannot open" in done.stderr


# --- the unit ------------------------------------------------------------------------


TEMPLATES = ROOT / "roles/lemonade_server/templates"
DAEMONS = ["lemond", "vllm"]


def unit(daemon: str, level: str) -> list[str]:
    """A unit's lines without comments."""
    variables = yaml.safe_load((ROOT / "roles/lemonade_server/defaults/main.yml").read_text())
    variables["lemonade_server_hardening"] = level
    environment = jinja2.Environment(
        trim_blocks=True, undefined=jinja2.StrictUndefined, loader=jinja2.FileSystemLoader(TEMPLATES)
    )
    lines = environment.get_template(f"{daemon}.service.j2").render(**variables).splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize("level", ["compat", "strict"])
def test_no_level_takes_the_gpu_away(daemon: str, level: str) -> None:
    lines = unit(daemon, level)
    for needed in (
        "DeviceAllow=char-kfd rw",
        "DeviceAllow=char-drm rw",
        "SupplementaryGroups=render video",
        "LimitMEMLOCK=infinity",
        f"ExecStartPre={paths.GPU_CHECK}",
    ):
        assert needed in lines
    names = {line.partition("=")[0] for line in lines}
    assert not names & {"MemoryDenyWriteExecute", "PrivateUsers", "ProcSubset", "PrivateDevices"}


@pytest.mark.parametrize("daemon", DAEMONS)
def test_strict_allows_a_list_and_refuses_what_compat_refuses(daemon: str) -> None:
    compat, strict = unit(daemon, "compat"), unit(daemon, "strict")
    refused = next(line for line in compat if line.startswith("SystemCallFilter=~"))
    # The order counts: a list of allowed calls that came second would allow refused ones again.
    assert strict.index("SystemCallFilter=@system-service") < strict.index(refused)
    assert "SystemCallFilter=@system-service" not in compat
    assert ("UMask=0022" in compat, "UMask=0077" in strict) == (True, True)


def test_no_start_of_vllm_asks_the_internet() -> None:
    lines = unit("vllm", "compat")
    assert {"Environment=HF_HUB_OFFLINE=1", "Environment=TRANSFORMERS_OFFLINE=1"} <= set(lines)
    assert f"ExecStart={paths.LAUNCHER} @ARGUMENTS@" in lines
