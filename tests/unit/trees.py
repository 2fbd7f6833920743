# SPDX-License-Identifier: Apache-2.0
"""Fixture trees: a host's files below a folder, put together piece by piece.

A test says only what is special about its host; :func:`strix_halo` and the others start from a
box that is in order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from lemonade_deploy.domain.host import Completed, Host

GOOD_KERNEL = "7.0.0-31-generic"
OLD_KERNEL = "6.14.0-37-generic"
GOOD_SIZES = (19185664, 16384)
OLD_VGPR_SIZES = (13942784, 16384)
FINGERPRINT = "CA8BB4727A47B4D09B4EE8969386B48A1A693C5C"
DKMS_VERSION = "6.16.13-2278356.24.04"
AMD_LINE = (
    "deb [arch=amd64,i386 signed-by=/etc/apt/keyrings/rocm.gpg] "
    "https://repo.radeon.com/amdgpu/{}/ubuntu noble main\n"
)
PIN = "Package: *\nPin: release o=repo.radeon.com\nPin-Priority: 600\n"


class Tree:
    """A host below *root*. ``srcversions`` is what modinfo says of the module for a kernel."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.srcversions: dict[str, str] = {}
        self.commands: list[tuple[str, ...]] = []
        self.host = Host(str(root), runner=self._run)

    def _run(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: str | None, timeout: float | None
    ) -> Completed:
        self.commands.append(tuple(argv))
        if argv[:2] == ("modinfo", "-k") and argv[3:5] == ("-F", "srcversion"):
            known = self.srcversions.get(argv[2])
            return Completed(tuple(argv), 0 if known else 1, f"{known}\n" if known else "", "")
        if argv[0] == "grub-probe":
            return Completed(tuple(argv), 0, {"--target=fs": "ext2\n"}.get(argv[1], ""), "")
        return Completed(tuple(argv), 1, "", f"{argv[0]}: nothing of the kind in this tree")

    def file(self, path: str, content: str | bytes = "") -> Tree:
        """Write a file."""
        real = self.root / path.lstrip("/")
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_bytes(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
        return self

    def grub_disk(self) -> Tree:
        """GRUB starts it from an ext4 file system on a plain partition."""
        self.file("/proc/self/mountinfo", "24 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n")
        return self.file("/boot/grub/grub.cfg")

    def link(self, path: str, target: str) -> Tree:
        """Make a symbolic link."""
        real = self.root / path.lstrip("/")
        real.parent.mkdir(parents=True, exist_ok=True)
        real.symlink_to(target)
        return self

    def remove(self, path: str) -> Tree:
        """Remove a file."""
        (self.root / path.lstrip("/")).unlink()
        return self

    def distribution(self, name: str = "ubuntu", version: str = "24.04", codename: str = "noble") -> Tree:
        """os-release."""
        text = f'NAME="{name}"\nID={name}\nVERSION_ID="{version}"\nVERSION_CODENAME={codename}\n'
        return self.file("/etc/os-release", text)

    def kernel(self, release: str, cmdline: str = "quiet") -> Tree:
        """The running kernel."""
        self.file("/proc/sys/kernel/osrelease", f"{release}\n")
        return self.file("/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{release} {cmdline}\n")

    def pci(
        self, device: int, address: str = "0000:c5:00.0", kind: int = 0x030000, vendor: int = 0x1002
    ) -> Tree:
        """A device on the bus."""
        base = f"/sys/bus/pci/devices/{address}"
        self.file(f"{base}/vendor", f"{vendor:#06x}\n")
        self.file(f"{base}/class", f"{kind:#08x}\n")
        return self.file(f"{base}/device", f"{device:#06x}\n")

    def kfd(self, number: int, text: str) -> Tree:
        """A KFD node's properties, as they are."""
        return self.file(f"/sys/class/kfd/kfd/topology/nodes/{number}/properties", text)

    def kfd_gpu(
        self,
        number: int,
        gfx_target_version: int,
        device: int,
        simd_count: int,
        sizes: tuple[int, int] | None,
        more: str = "",
    ) -> Tree:
        """A GPU node; ``sizes`` None leaves the two lines out."""
        lines = [
            f"simd_count {simd_count}",
            "simd_per_cu 2",
            f"gfx_target_version {gfx_target_version}",
            "vendor_id 4098",
            f"device_id {device}",
            f"drm_render_minor {127 + number}",
            "num_xcc 1",
        ]
        if sizes is not None:
            lines += [f"cwsr_size {sizes[0]}", f"ctl_stack_size {sizes[1]}"]
        return self.kfd(number, "\n".join(lines) + "\n" + more)

    def cpu_node(self) -> Tree:
        """KFD's node 0."""
        return self.kfd(0, "cpu_cores_count 32\nsimd_count 0\ngfx_target_version 0\n")

    def module(self, kernel: str, origin: str) -> Tree:
        """An amdgpu module on the disk."""
        places = {
            "in-tree": "kernel/drivers/gpu/drm/amd/amdgpu",
            "dkms": "updates/dkms",
            "foreign": "updates",
        }
        self.srcversions[kernel] = f"{origin.upper()}-{kernel}"
        return self.file(f"/lib/modules/{kernel}/{places[origin]}/amdgpu.ko.zst", b"\x28\xb5\x2f\xfd")

    def loaded(self, origin: str, kernel: str, version: str = "6.16.13") -> Tree:
        """The module in the kernel."""
        self.file("/sys/module/amdgpu/srcversion", f"{origin.upper()}-{kernel}\n")
        return self.file("/sys/module/amdgpu/version", f"{version}\n") if origin == "dkms" else self

    def dkms(
        self,
        version: str = DKMS_VERSION,
        built: Sequence[str] = (),
        failed: str | None = None,
        source: bool = True,
    ) -> Tree:
        """DKMS's tree of a version; ``failed`` leaves a build log for that kernel."""
        base = f"/var/lib/dkms/amdgpu/{version}"
        (self.root / base.lstrip("/")).mkdir(parents=True, exist_ok=True)
        if source:
            self.link(f"{base}/source", f"/usr/src/amdgpu-{version}")
            self.file(f"/usr/src/amdgpu-{version}/dkms.conf", 'PACKAGE_NAME="amdgpu"\n')
        for kernel in built:
            self.file(f"{base}/{kernel}/x86_64/module/amdgpu.ko.zst", b"")
            self.file(
                f"{base}/{kernel}/x86_64/log/make.log",
                f"DKMS make.log for amdgpu-{version} for kernel {kernel}\n",
            )
            self.link(f"/var/lib/dkms/amdgpu/kernel-{kernel}-x86_64", f"{version}/{kernel}/x86_64")
        if failed is not None:
            text = f"DKMS make.log for amdgpu-{version} for kernel {failed} (x86_64)\nkcl.c:1: error: no\n"
            self.file(f"{base}/build/make.log", text)
        return self

    def dpkg(self, packages: Mapping[str, tuple[str, str]]) -> Tree:
        """dpkg's status: name -> (version, Status line)."""
        stanzas = [
            f"Package: {name}\nStatus: {status}\nArchitecture: all\nVersion: {version}\nTag: x\n more\n"
            for name, (version, status) in packages.items()
        ]
        return self.file("/var/lib/dpkg/status", "\n".join(stanzas))

    def dkms_packages(self, status: str = "install ok installed") -> Tree:
        """AMD's two packages of 30.30."""
        return self.dpkg(
            {
                "amdgpu-dkms": (f"1:6.16.13.30300000-{DKMS_VERSION.split('-')[1]}", status),
                "amdgpu-dkms-firmware": ("30.30.0.0.30300000-2278356.24.04", "install ok installed"),
            }
        )

    def amd_source(self, version: str = "30.30") -> Tree:
        """AMD's driver repository as its installer writes it."""
        self.file("/etc/apt/preferences.d/repo-radeon-pin-600", PIN)
        return self.file("/etc/apt/sources.list.d/amdgpu.list", AMD_LINE.format(version))

    def users(self, groups: Sequence[str] = ("render", "video")) -> Tree:
        """The service's user in these groups."""
        self.file(
            "/etc/passwd", "root:x:0:0::/root:/bin/bash\nlemonade:x:990:990::/var/lib/lemonade:/bin/false\n"
        )
        text = "root:x:0:\nlemonade:x:990:\n"
        for number, name in enumerate(("render", "video")):
            text += f"{name}:x:{100 + number}:{'lemonade' if name in groups else ''}\n"
        return self.file("/etc/group", text)

    def memory(self, gib: int = 128) -> Tree:
        """MemTotal."""
        return self.file("/proc/meminfo", f"MemTotal:       {gib * 1024**2} kB\nMemFree: 1 kB\n")

    def secure_boot(self) -> Tree:
        """Secure Boot on."""
        name = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
        return self.file(f"/sys/firmware/efi/efivars/{name}", b"\x06\0\0\0\x01")

    def lemond(self, defaults: object, config: object, path: str = "/var/lib/lemonade/config.json") -> Tree:
        """The kit's defaults file and lemond's own."""
        self.file("/etc/lemonade-deploy/lemond-defaults.json", json.dumps(defaults))
        return self.file(path, json.dumps(config, indent=2))

    def snapshot(self) -> dict[str, object]:
        """Every path with its content, to compare before and after."""
        seen: dict[str, object] = {}
        for folder, folders, files in os.walk(self.root):
            for name in folders + files:
                path = Path(folder, name)
                known = (
                    path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
                )
                seen[str(path)] = (known, path.lstat().st_mode)
        return seen


def bare(root: Path, kernel: str = GOOD_KERNEL) -> Tree:
    """Ubuntu 24.04 without any GPU."""
    return Tree(root).distribution().kernel(kernel).memory().dpkg({}).grub_disk()


def strix_halo(
    root: Path,
    kernel: str = GOOD_KERNEL,
    sizes: tuple[int, int] | None = GOOD_SIZES,
    origin: str = "in-tree",
) -> Tree:
    """A Strix Halo box with that kernel, driver and numbers."""
    tree = bare(root, kernel).pci(0x1586, kind=0x038000).cpu_node()
    tree.kfd_gpu(1, 110501, 0x1586, 80, sizes)
    return tree.module(kernel, "in-tree").module(kernel, origin).loaded(origin, kernel)


def dirty(root: Path) -> Tree:
    """Strix Halo under DKMS 6.16.13 from 30.30 on an old kernel."""
    tree = strix_halo(root, OLD_KERNEL, None, "dkms")
    return tree.dkms(built=[OLD_KERNEL]).dkms_packages().amd_source()


def dark(root: Path) -> Tree:
    """Strix Halo after a failed DKMS build: blacklisted, no KFD node, dpkg half-configured."""
    tree = bare(root, GOOD_KERNEL).pci(0x1586, kind=0x038000).module(GOOD_KERNEL, "in-tree")
    tree.file("/etc/modprobe.d/blacklist-amdgpu.conf", "# by AMD\nblacklist amdgpu\n")
    return tree.dkms(failed=GOOD_KERNEL).dkms_packages("install ok half-configured").amd_source()


def radeon(root: Path, kernel: str = GOOD_KERNEL, origin: str = "in-tree") -> Tree:
    """A box with an RX 7900 XTX."""
    tree = bare(root, kernel).pci(0x744C, "0000:03:00.0").cpu_node()
    tree.kfd_gpu(1, 110000, 0x744C, 192, (46047232, 40960))
    return tree.module(kernel, origin).loaded(origin, kernel)


def foreign(root: Path) -> Tree:
    """Strix Halo whose module no package brought."""
    return strix_halo(root).module(GOOD_KERNEL, "foreign")


def built_in(root: Path) -> Tree:
    """Strix Halo with a node, and no loaded module: amdgpu is in the kernel's image."""
    tree = bare(root).pci(0x1586).kfd_gpu(1, 110501, 0x1586, 80, GOOD_SIZES)
    return tree.module(GOOD_KERNEL, "in-tree")
