# SPDX-License-Identifier: Apache-2.0
"""The modules kernel and activate themselves: what they refuse, predict and confirm."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from driver_box import Box
from trees import GOOD_KERNEL, GOOD_SIZES, OLD_KERNEL

from lemonade_deploy.content import link_collection
from lemonade_deploy.domain import activation, dpkg, grub, mounts, paths, trial, trial_menu, trial_units
from lemonade_deploy.domain.activation import Due

PACKAGE = "ansible_collections.lemonade.deploy.plugins"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Run]:
    """Run a module on a box, as Ansible imports and calls it; its JSON."""
    monkeypatch.syspath_prepend(str(link_collection(tmp_path_factory.mktemp("collections"))))
    before = set(sys.modules)

    def call(name: str, box: Box, **arguments: Any) -> dict[str, Any]:
        module = importlib.import_module(f"{PACKAGE}.modules.{name}")
        host = importlib.import_module(f"{PACKAGE}.module_utils.host")
        monkeypatch.setattr(module, "Host", lambda: host.Host(str(box.root), box.host._runner))
        with patch_module_args(arguments), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    yield call
    for name in set(sys.modules) - before:
        if name.startswith("ansible_collections"):
            del sys.modules[name]


def box_of(tmp_path: Path, running: str = OLD_KERNEL, sizes: tuple[int, int] | None = GOOD_SIZES) -> Box:
    box = Box(tmp_path)
    box.kernel(running).pci(0x1586, kind=0x038000).cpu_node().kfd_gpu(1, 110501, 0x1586, 80, sizes)
    box.loaded("in-tree", running).file(activation.BOOT_ID, "0000-1\n").dpkg({}).grub_disk()
    box.kernels(OLD_KERNEL, GOOD_KERNEL).module(GOOD_KERNEL, "in-tree")
    return box.on("grub-probe", "--target=fs", stdout="ext2\n").on("grub-probe", "--target=abstraction")


def did(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(change["object"], change["action"]) for change in result["changes"]]


def on_disk(root: Path) -> dict[Path, bytes]:
    """Every file and its bytes; /run, where locks are, is in memory."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if not path.is_relative_to(root / "run")}


# -- kernel ----------------------------------------------------------------------------------------


def test_a_host_that_could_not_fall_back_is_left_as_it_is(run: Run, tmp_path: Path) -> None:
    box = box_of(tmp_path)
    box.file(mounts.MOUNTINFO, "24 1 0:27 / / rw shared:1 - btrfs /dev/nvme0n1p2 rw\n")
    before = on_disk(tmp_path)
    result = run("kernel", box, release=GOOD_KERNEL, packages=["linux-generic"])
    assert result["failed"] and "btrfs" in result["failure"]["message"]
    assert "kernel_source: keep" in result["failure"]["remedy"]
    assert on_disk(tmp_path) == before


def test_a_converged_host_is_not_asked_anything(run: Run, tmp_path: Path) -> None:
    box = box_of(tmp_path, GOOD_KERNEL)
    result = run("kernel", box, release="", packages=[])
    assert (result["changed"], result["activation"]["kernel"], box.commands) == (False, None, [])


def half_unpacked(box: Box) -> Box:
    """dpkg was killed while it unpacked the kernel: its image is not there yet."""
    status = f"Package: linux-image-{GOOD_KERNEL}\nStatus: install reinstreq half-installed\nVersion: 1\n"
    box.remove(f"/boot/vmlinuz-{GOOD_KERNEL}")
    box.file(dpkg.STATUS, status)
    box.on("apt-cache", "show", stdout="Package: linux-generic\nVersion: 1\n")
    return box


@pytest.mark.parametrize(("repaired", "installs"), [(True, False), (False, True)])
def test_a_kernel_that_the_driver_layer_completes_is_not_predicted_to_be_installed(
    run: Run, tmp_path: Path, repaired: bool, installs: bool
) -> None:
    box = half_unpacked(box_of(tmp_path))
    wish = {"release": GOOD_KERNEL, "packages": ["linux-generic"], "repaired": repaired}
    result = run("kernel", box, **wish, _ansible_check_mode=True)
    assert (("kernel", "install") in did(result)) == installs


def minimal(tmp_path: Path) -> Box:
    """Ubuntu's newest kernel runs, without linux-modules-extra."""
    box = box_of(tmp_path, GOOD_KERNEL, None).file("/etc/apt/x", "")
    for path in ("/sys/module/amdgpu", f"/lib/modules/{GOOD_KERNEL}/kernel/drivers"):
        shutil.rmtree(tmp_path / path.lstrip("/"))
    box.on("apt-cache", "show", stdout="Package: linux-generic\nVersion: 1\n")
    box.on("apt-get", "-s", "install", stdout=f"Inst linux-modules-extra-{GOOD_KERNEL} (1 x [amd64])\n")
    return box


def test_a_minimal_install_gets_the_module_of_the_kernel_that_runs(run: Run, tmp_path: Path) -> None:
    box = minimal(tmp_path)
    driver = run("amdgpu_driver", box, policy="intree")
    assert did(driver) == [("apt pin amdgpu-dkms", "write")], "nothing of AMD's would go"

    def install(argv: Sequence[str], _env: Mapping[str, str]) -> None:
        if "-s" not in argv:
            box.module(GOOD_KERNEL, "in-tree")

    wish = {"release": GOOD_KERNEL, "packages": ["linux-generic"]}
    predicted = run("kernel", box, **wish, _ansible_check_mode=True)
    box.on("apt-get", "install", "linux-generic", do=install)
    result = run("kernel", box, **wish)
    assert did(predicted) == did(result) == [("kernel", "install"), ("kernel hold", "set")]
    due = {"initramfs": True, "reboot": ["amdgpu is not loaded"], "kernel": None}
    assert predicted["activation"] == result["activation"] == due
    assert not box.ran("grub-mkconfig") and not box.ran("grub-reboot"), "the kernel runs: it is not tried"
    assert did(run("kernel", box, **wish)) == []


def test_a_boot_that_brings_no_module_is_not_begun(run: Run, tmp_path: Path) -> None:
    """Without the kernel's role (kernel_source: keep, tags) nobody installs it."""
    result = run("activate", minimal(tmp_path), origin="in-tree", kernel=GOOD_KERNEL)
    assert result["failed"] and "linux-modules-extra" in result["failure"]["remedy"]
    assert "no amdgpu module" in result["failure"]["message"]


# -- activate --------------------------------------------------------------------------------------


def on_trial(box: Box) -> Box:
    """The boot of a trial of GOOD_KERNEL, begun from the old one."""
    box.kernel(OLD_KERNEL)
    activation.save(box.host, Due(kernel=GOOD_KERNEL, tries=1, tried="0000-1"))
    trial.arm(box.host, GOOD_KERNEL, 900)
    grub.clear_next(box.host)
    box.kernel(GOOD_KERNEL).file(activation.BOOT_ID, "0000-2\n")
    box.file("/proc/cmdline", f"ro {trial_menu.trial_parameters(GOOD_KERNEL)}\n")
    return box


PROVE = {"state": "prove", "origin": "in-tree", "kernel": GOOD_KERNEL, "confirm_timeout": 0}


def default_of(box: Box) -> str:
    state = grub.read(box.host)
    assert state is not None
    return state.default_release()


def test_a_proven_trial_is_confirmed(run: Run, tmp_path: Path) -> None:
    box = on_trial(box_of(tmp_path, GOOD_KERNEL))
    result = run("activate", box, **PROVE)
    assert did(result) == [("grub default", "promote")]
    assert default_of(box) == GOOD_KERNEL
    assert box.text(paths.TRIAL_CONFIRMED) and not activation.load(box.host)


def test_wrong_numbers_confirm_nothing_and_ask_for_the_way_back(run: Run, tmp_path: Path) -> None:
    box = on_trial(box_of(tmp_path, GOOD_KERNEL, None))
    result = run("activate", box, **PROVE)
    assert (result["failed"], result["trial"], did(result)) == (True, GOOD_KERNEL, [])
    assert default_of(box) == OLD_KERNEL
    assert not box.host.exists(paths.TRIAL_CONFIRMED)
    assert box.host.exists(f"{trial_units.FOLDER}/{trial_units.TIMER}"), (
        "the timer stays until somebody confirms"
    )


def test_a_memory_limit_that_is_off_does_not_cost_a_good_kernel(run: Run, tmp_path: Path) -> None:
    box = on_trial(box_of(tmp_path, GOOD_KERNEL)).file("/sys/module/ttm/parameters/pages_limit", "1\n")
    result = run("activate", box, **PROVE, pages=25165824)
    assert (result["failed"], result["trial"]) == (True, "")
    assert "pages_limit" in result["failure"]["message"]
    assert did(result) == [("grub default", "promote")], "what was done before the failure is told"
    assert default_of(box) == GOOD_KERNEL


def test_a_trial_whose_marker_is_gone_is_still_a_trial(run: Run, tmp_path: Path) -> None:
    box = on_trial(box_of(tmp_path, GOOD_KERNEL))
    activation.clear(box.host)
    wish = {"origin": "in-tree", "kernel": GOOD_KERNEL}
    predicted = run("activate", box, **wish, _ansible_check_mode=True)
    assert did(run("activate", box, **wish)) == did(predicted) == [("grub default", "promote")]
    assert default_of(box) == GOOD_KERNEL


def test_the_old_kernel_again_is_a_failure_with_what_is_known(run: Run, tmp_path: Path) -> None:
    box = on_trial(box_of(tmp_path, GOOD_KERNEL))
    box.kernel(OLD_KERNEL).file("/proc/cmdline", "ro\n")
    result = run("activate", box, **PROVE)
    assert result["failed"] and "did not prove itself" in result["failure"]["message"]
    assert "tries it once more" in result["failure"]["remedy"]
    assert not box.host.exists(f"{trial_units.FOLDER}/{trial_units.TIMER}")
    assert activation.load(box.host).tries == 1, "the next run knows of it"
