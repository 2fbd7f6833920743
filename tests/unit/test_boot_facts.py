# SPDX-License-Identifier: Apache-2.0
"""What the facts say of the boot loader, of the service's user, of firmware and options."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from driver_box import Box, menu_id
from trees import GOOD_KERNEL, OLD_KERNEL, PIN, Tree, bare, dirty, strix_halo

from lemonade_deploy.domain import boot_facts, firmware_facts, grub, modprobe_conf, service_user
from lemonade_deploy.domain.facts import read_facts

ROOT = Path(__file__).parents[2]
EFI = "/sys/firmware/efi/efivars/{}-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"


def variable(tree: Tree, name: str, text: str) -> Tree:
    return tree.file(EFI.format(name), b"\x06\0\0\0" + text.encode("utf-16-le") + b"\0\0")


def test_grub_default_and_one_shot(tmp_path: Path) -> None:
    box = Box(tmp_path).kernels(GOOD_KERNEL, OLD_KERNEL)
    found = boot_facts.read(box.host)
    assert (found.kind, found.default, found.next) == ("grub", GOOD_KERNEL, "")
    box.file("/etc/default/grub", "GRUB_DEFAULT=saved\n").write_menu()
    values = {"saved_entry": menu_id(OLD_KERNEL), "next_entry": menu_id(GOOD_KERNEL)}
    box.file("/boot/grub/grubenv", grub.format_env(values))
    found = boot_facts.read(box.host)
    assert (found.default, found.next) == (OLD_KERNEL, GOOD_KERNEL)
    assert [entry.release for entry in found.entries if not entry.recovery and "advanced" in entry.id] == [
        GOOD_KERNEL,
        OLD_KERNEL,
    ]


def entry(tree: Tree, root: str, name: str, release: str, title: str = "Linux") -> None:
    text = f"title {title}\nversion {release}\nlinux /vmlinuz-{release}\n"
    tree.file(f"{root}/loader/entries/{name}.conf", text)


def test_systemd_boot(tmp_path: Path) -> None:
    tree = Tree(tmp_path).file("/boot/efi/loader/loader.conf", "timeout 3\ndefault old-*\n")
    entry(tree, "/boot/efi", "new-1", "7.0.0")
    entry(tree, "/boot/efi", "old-1", "6.14.0")
    found = boot_facts.read(tree.host)
    assert (found.kind, found.default, found.next) == ("systemd-boot", "6.14.0", "")
    assert [item.release for item in found.entries] == ["7.0.0", "6.14.0"]
    variable(tree, "LoaderEntryOneShot", "new-1.conf")
    variable(tree, "LoaderInfo", "systemd-boot 257")
    tree.file("/boot/grub/grub.cfg", 'set default="0"\n')
    found = boot_facts.read(tree.host)
    assert (found.kind, found.next) == ("systemd-boot", "7.0.0"), (
        "what started the host counts, not old files"
    )


def test_fedoras_grub_has_its_entries_in_files(tmp_path: Path) -> None:
    tree = Tree(tmp_path).file("/boot/grub2/grub.cfg", "blscfg\n")
    entry(tree, "/boot", "abc-6.17.0-300.fc43.x86_64", "6.17.0-300.fc43.x86_64")
    entry(tree, "/boot", "abc-6.18.4-200.fc43.x86_64", "6.18.4-200.fc43.x86_64")
    found = boot_facts.read(tree.host)
    assert (found.kind, found.default) == ("grub", "6.18.4-200.fc43.x86_64")
    tree.file("/boot/grub2/grubenv", grub.format_env({"saved_entry": "abc-6.17.0-300.fc43.x86_64"}))
    assert boot_facts.read(tree.host).default == "6.17.0-300.fc43.x86_64"


def test_other_loaders_are_named(tmp_path: Path) -> None:
    assert boot_facts.read(Tree(tmp_path).host).kind == ""
    tree = variable(Tree(tmp_path), "LoaderInfo", "Limine 9.0")
    assert boot_facts.read(tree.host).kind == "Limine 9.0"


@pytest.fixture
def devices() -> Iterator[Path]:
    """A folder that everybody may enter (pytest's own is root's alone)."""
    with tempfile.TemporaryDirectory(prefix="unit-devices-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_access_is_asked_as_that_user(devices: Path) -> None:
    for name, mode, group in (
        ("open", 0o666, 0),
        ("group", 0o660, 44444),
        ("root", 0o600, 0),
        ("read", 0o444, 0),
    ):
        (devices / name).touch()
        os.chown(devices / name, 0, group)
        os.chmod(devices / name, mode)
    paths = [str(devices / name) for name in ("open", "group", "root", "read")]
    assert service_user.denied(65534, 65534, [44444], paths) == paths[2:]
    assert service_user.denied(65534, 65534, [], paths) == paths[1:]
    assert service_user.denied(65534, 44444, [], paths) == paths[2:]
    assert os.geteuid() == 0


def test_debugfs_is_only_asked_where_sysfs_is_silent(tmp_path: Path) -> None:
    tree = strix_halo(tmp_path)
    where = "0000:c5:00.0"
    assert firmware_facts.mes_version(tree.host, where, None) == (None, "")
    info = (
        "MES_KIQ feature version: 6, fw version: 0x0000006f\nMES feature version: 1, fw version: 0x00000080\n"
    )
    tree.file("/sys/kernel/debug/dri/1/name", "amdgpu dev=0000:03:00.0 unique=0000:03:00.0\n")
    tree.file("/sys/kernel/debug/dri/1/amdgpu_firmware_info", info)
    assert firmware_facts.mes_version(tree.host, where, None) == (None, ""), "another GPU's"
    tree.file(f"/sys/kernel/debug/dri/{where}/amdgpu_firmware_info", info)
    assert firmware_facts.mes_version(tree.host, where, None)[0] == 0x80
    tree.file("/dev-folder/fw_version/mes_fw_version", "0x00000083\n")
    assert firmware_facts.mes_version(tree.host, where, "/dev-folder")[0] == 0x83


def test_options_of_the_driver(tmp_path: Path) -> None:
    tree = Tree(tmp_path).file("/etc/modprobe.d/a.conf", "options amdttm pages_limit=1\noptions snd x=1\n")
    tree.file("/etc/modprobe.d/b.conf", "options amdgpu cwsr_enable=0 \\\n modeset=0\n#options amdgpu x=1\n")
    found = modprobe_conf.options(tree.host)
    assert [(item.path, item.line, bool(item.effect), item.blocks) for item in found] == [
        ("/etc/modprobe.d/a.conf", 1, False, False),
        ("/etc/modprobe.d/b.conf", 1, True, True),
    ]


def test_the_report_names_what_the_box_has(tmp_path: Path) -> None:
    tree = dirty(tmp_path).file(
        "/etc/apt/preferences.d/mine", "Package: bash\nPin: origin x\nPin-Priority: 1\n"
    )
    tree.file("/etc/modprobe.d/a.conf", "options amdttm pages_limit=1\n")
    tree.file("/lib/firmware/updates/amdgpu/gc_11_5_1_mes_2.bin")
    public = read_facts(tree.host).public()
    assert [pin["path"] for pin in public["pins"]] == ["/etc/apt/preferences.d/repo-radeon-pin-600"]
    assert PIN.splitlines()[1].endswith(public["pins"][0]["pin"])
    assert public["keys"][0]["path"] == "/etc/apt/keyrings/rocm.gpg"
    assert set(public["keys"][0]) == {"path", "state", "why", "fingerprint", "expires"}
    assert public["modprobe_options"] == ["/etc/modprobe.d/a.conf:1: options amdttm pages_limit=1"]
    assert public["firmware_shadow"] == ["gc_11_5_1_mes_2.bin"]
    assert set(public["boot_loader"]) == {"kind", "default", "next", "entries"}
    assert public["dpkg_interrupted"] is False
    assert public["module"]["on_disk"]["version"] == "6.16.13"
    gpu = public["gpu"][0]
    names = (
        "gfx",
        "family",
        "support",
        "cu_count",
        "apu",
        "cwsr_size",
        "ctl_stack_size",
        "cwsr",
        "vram",
        "gtt",
    )
    assert set(names) | {"expected_cwsr_size", "expected_ctl_stack_size", "mes_firmware"} <= set(gpu)


def test_facts_have_the_form_that_doctor_promises(tmp_path: Path) -> None:
    schema = json.loads((ROOT / "lemonade_deploy" / "schema" / "doctor.json").read_text(encoding="utf-8"))
    wanted = {**schema["$defs"]["facts"], "$defs": schema["$defs"]}
    for number, build in enumerate((strix_halo, dirty, bare)):
        public = json.loads(json.dumps(read_facts(build(tmp_path / str(number)).host).public()))
        jsonschema.validate(public, wanted)
