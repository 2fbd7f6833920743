# SPDX-License-Identifier: Apache-2.0
"""The virtual machine, as far as it needs none: disk layout, repacked packages, view, inventory."""

from __future__ import annotations

import json
import lzma
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lemonade_deploy.domain import cwsr, kfd
from lemonade_deploy.domain.amdgpu_module import IN_TREE, on_disk
from lemonade_deploy.domain.host import Host
from lemonade_deploy.lab.kmod import module_bytes, read_modinfo
from lemonade_deploy.lab.shell import LabError, Process
from lemonade_deploy.lab.state import write_json
from lemonade_deploy.lab.vm import image, kernels, machine
from lemonade_deploy.lab.vm.image import Image
from lemonade_deploy.lab.vm.machine import Machine

RELEASE = "7.3.4+deb13-amd64"


def module(name: str, depends: str = "") -> bytes:
    """A module as Debian packs it."""
    plain = module_bytes(name=name, version=None, srcversion="X", vermagic=RELEASE)
    return lzma.compress(plain.replace(b"depends=\0", f"depends={depends}\0".encode(), 1))


def tree(root: Path) -> Path:
    """The modules of a kernel package: two that are wanted, what they depend on, and others."""
    base = root / "usr/lib/modules" / RELEASE / "kernel"
    for name in ("virtio_net", "virtio-rng", "net_failover", "failover", "nouveau", "amdgpu"):
        path = base / ("drivers/gpu/drm/amd/amdgpu" if name == "amdgpu" else name) / f"{name}.ko.xz"
        path.parent.mkdir(parents=True)
        path.write_bytes(module(name))
    (root / "usr/share/doc").mkdir(parents=True)
    return base


def test_a_slim_kernel_keeps_what_the_guest_needs_and_its_amdgpu_is_a_stub(tmp_path: Path) -> None:
    base = tree(tmp_path)
    kernels.slim(tmp_path, RELEASE)
    left = {path.name for path in base.rglob("*.ko*")}
    assert left == {"virtio_net.ko.xz", "virtio-rng.ko.xz", "amdgpu.ko"}
    assert not (tmp_path / "usr/share").exists()
    host = Host(str(tmp_path / "usr"))
    assert on_disk(host, RELEASE).origin == IN_TREE
    stub = (tmp_path / "usr/lib/modules" / RELEASE / image.AMDGPU).read_bytes()
    assert read_modinfo(stub)["vermagic"].startswith(RELEASE)


def test_dependencies_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tree(tmp_path)
    chain = {"virtio_net": ["net-failover"], "net_failover": ["failover"]}
    monkeypatch.setattr(kernels, "_depends", lambda path: chain.get(path.name.partition(".")[0], [""]))
    kernels.slim(tmp_path, RELEASE)
    assert {"net_failover.ko.xz", "failover.ko.xz"} <= {path.name for path in base.rglob("*.ko*")}


def test_a_kernel_without_the_cards_driver_is_no_base_for_faults(tmp_path: Path) -> None:
    base = tree(tmp_path)
    next(base.rglob("virtio_net.ko.xz")).unlink()
    with pytest.raises(LabError, match="virtio_net"):
        kernels.slim(tmp_path, RELEASE)


@pytest.mark.parametrize("fault", sorted(kernels.FAULTS))
def test_each_fault_changes_its_package(tmp_path: Path, fault: str) -> None:
    tree(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    _part, change = kernels.FAULTS[fault]
    change(tmp_path, RELEASE)
    assert before != {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_the_dead_driver_is_there_for_whoever_looks(tmp_path: Path) -> None:
    tree(tmp_path)
    change = kernels.FAULTS["nic-dead"][1]
    change(tmp_path, RELEASE)
    (driver,) = tmp_path.rglob("virtio_net.ko*")
    assert read_modinfo(driver.read_bytes())["vermagic"].startswith("0-damaged")


def test_only_the_newer_kernel_exports_the_numbers() -> None:
    record: dict[str, Any] = image.gpu_record()
    verdicts = {}
    for key in ("properties", "properties_without"):
        node = kfd.parse_node(1, "", record[key] + "\n")
        assert node is not None and node.gfx == "gfx1151"
        verdicts[key] = cwsr.judge(node.gfx, node.cu_count, node.cwsr_size, node.ctl_stack_size).verdict
    assert verdicts == {"properties": "ok", "properties_without": "missing"}
    json.dumps(record)


def test_the_disk_has_one_bootable_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, disk = tmp_path / "root", tmp_path / "disk"
    (root / "usr/lib/grub/i386-pc").mkdir(parents=True)
    (root / "usr/lib/grub/i386-pc/boot.img").write_bytes(b"B" * 512)
    ran: list[list[str]] = []

    def run(argv: list[Any], **_more: Any) -> None:
        ran.append([str(word) for word in argv])
        if "grub-mkimage" in argv:
            (root / "boot/grub/i386-pc/core.img").write_bytes(b"C" * 1000)

    monkeypatch.setattr(image, "run", run)
    image.write_disk(root, disk, "6.1.0-50-cloud-amd64")
    data = disk.read_bytes()[:4096]
    assert data[:440] == b"B" * 440 and data[510:512] == b"\x55\xaa" and data[512:1512] == b"C" * 1000
    flag, kind = data[446], data[450]
    start, sectors = struct.unpack_from("<II", data, 454)
    assert (flag, kind, start) == (0x80, 0x83, 2048)
    assert (start + sectors) * 512 == disk.stat().st_size
    assert "offset=1048576" in ran[-1]


def test_the_inventory_checks_the_host_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "host_key.pub").write_text("ssh-ed25519 AAAA comment\n")
    (folder / "disk.qcow2").write_bytes(b"")
    guest = Machine(Image(folder, "6.1"), tmp_path / "run")
    inventory = yaml.safe_load(guest.inventory(kernel_confirm_timeout=60).read_text())
    host = inventory["lemonade"]["hosts"][machine.NAME]
    assert host["kernel_confirm_timeout"] == 60 and host["ansible_host"] == "127.0.0.1"
    assert "StrictHostKeyChecking=yes" in host["ansible_ssh_common_args"]
    assert guest.known_hosts.read_text() == f"[127.0.0.1]:{guest.port} ssh-ed25519 AAAA\n"
    assert not guest.alive()


def test_missing_programs_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image.shutil, "which", lambda program: None if "qemu" in program else "/bin/x")
    with pytest.raises(LabError, match=r"apt-get install qemu-system-x86 qemu-utils$"):
        image.base_image()


def test_the_process_of_a_killed_run_is_ended_and_its_disk_not_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with subprocess.Popen(["sleep", "600"]) as left:
        write_json(folder / machine.RECORD, Process.of(left.pid).dump())
        (folder / "disk.qcow2").write_bytes(b"stale")
        (tmp_path / "disk.qcow2").write_bytes(b"fresh")
        (tmp_path / "host_key.pub").write_text("ssh-ed25519 AAAA\n")
        try:
            guest = Machine(Image(tmp_path, "6.1"), folder)
            assert left.wait(10) != 0
        finally:
            left.kill()
    assert guest.disk.read_bytes() == b"fresh" and not (folder / machine.RECORD).exists()
