# SPDX-License-Identifier: Apache-2.0
"""The virtual machine's disk: a slim Debian 13 with an older kernel, real GRUB, and a running snapshot.

Built once a recipe and kept below the cache folder: the root by mmdebstrap, an MBR disk without loop
devices (mke2fs -d), a first boot in which the guest writes its own grub.cfg, and a snapshot of the
machine after it, so that a test starts within a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ..hardware import GIB, STRIX_HALO, Gpu
from ..kmod import srcversion, vermagic, write_module
from ..paths import cache_dir
from ..root import mirror
from ..say import step
from ..shell import LabError, LabUsageError, run
from ..state import exclusive
from ..view import kfd_properties

SUITE = "trixie"
SNAPSHOT = "ready"  # booted from the older kernel, ssh answers, nothing of ours done yet
DISK_MIB = 3072
SECTOR, FIRST_SECTOR = 512, 2048
AMDGPU = "kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko"
# Debian 12's kernel (6.1), as on a box that was upgraded: trixie's own carries the CWSR fix, and a
# kernel that should have it and shows no numbers is nothing the kit touches. cloud: fewest modules.
OLD_SUITE = "bookworm"
OLD_KERNEL = f"linux-image-cloud-amd64/{OLD_SUITE}"

PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "kmod", "procps", "iproute2", "mount", "passwd"),
    *("openssh-server", "python3", "python3-apt", "sudo", "ca-certificates", "zstd", "linux-base"),
    *("initramfs-tools", "e2fsprogs", "grub-pc", OLD_KERNEL),
)
# Units that only slow a boot down under emulation, or that act on a schedule.
MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer"),
    *("fstrim.timer", "e2scrub_reap.service", "getty@tty1.service", "dev-hugepages.mount"),
    *("dev-mqueue.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount"),
    *("systemd-networkd-wait-online.service", "systemd-networkd-persistent-storage.service"),
    *("systemd-timesyncd.service", "systemd-pcrphase.service", "systemd-hibernate-clear.service"),
)
# What the guest finds on its board; a snapshot fits only the same. ERST keeps a panic's last words.
# One processor: emulated ones wait for each other where the machine is busy.
MEMORY_MIB = 640
ERST_BYTES = 65536
HARDWARE = (
    *("-accel", "tcg,tb-size=256", "-machine", "pc", "-m", str(MEMORY_MIB), "-smp", "1"),
    *("-nographic", "-nodefaults", "-no-user-config", "-device", "virtio-rng-pci"),
    *("-device", "virtio-net-pci,netdev=n0,romfile=", "-device", "acpi-erst,memdev=erst"),
)
CMDLINE = "console=ttyS0 net.ifnames=0"
FILES = {
    "etc/hostname": "lemonade-vm\n",
    "etc/hosts": "127.0.0.1 localhost lemonade-vm\n",
    "etc/fstab": "/dev/vda1 / ext4 defaults 0 1\n",
    "etc/resolv.conf": "",
    "etc/machine-id": "",
    "etc/sudoers.d/deploy": "deploy ALL=(ALL) NOPASSWD:ALL\n",
    "etc/ssh/sshd_config.d/lab.conf": "PasswordAuthentication no\nUseDNS no\n",
    # QEMU's user network: the machine's loopback is 10.0.2.2. A fixed address spares waiting for DHCP.
    "etc/systemd/network/10-lab.network": (
        "[Match]\nName=e*\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\nIPv6AcceptRA=no\n"
        "LinkLocalAddressing=no\n"
    ),
    "etc/default/grub": (
        "GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\nGRUB_DISTRIBUTOR=Debian\nGRUB_CMDLINE_LINUX_DEFAULT=quiet\n"
        f'GRUB_CMDLINE_LINUX="{CMDLINE}"\nGRUB_TERMINAL=console\nGRUB_DISABLE_OS_PROBER=true\n'
        "GRUB_DISABLE_LINUX_UUID=true\n"
    ),
    "etc/initramfs-tools/conf.d/lab.conf": (
        "MODULES=list\nCOMPRESS=zstd\nCOMPRESSLEVEL=1\nFSTYPE=ext4\nRESUME=none\n"
    ),
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
    "etc/dpkg/dpkg.cfg.d/lab": "force-unsafe-io\n",
    "etc/apt/apt.conf.d/90lab": 'Acquire::Languages "none";\nAPT::Install-Recommends "false";\n',
}
# program -> Debian package that brings it, beside what the lab needs anyway
NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mke2fs": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
}
# To be counted up when the code makes something else of the same data.
VERSION = 1


@dataclass(frozen=True)
class Image:
    """A built disk (qcow2 with :data:`SNAPSHOT` in it) and its ssh keys."""

    folder: Path
    kernel: str

    @property
    def disk(self) -> Path:
        """The disk; to be copied, not written."""
        return self.folder / "disk.qcow2"

    @property
    def client_key(self) -> Path:
        """Private key that user ``deploy`` lets in."""
        return self.folder / "id_ed25519"

    @property
    def host_key(self) -> str:
        """The guest's public host key: kind and key."""
        return " ".join((self.folder / "host_key.pub").read_text("utf-8").split()[:2])


def guest_file(name: str) -> str:
    """A file of ``lab/vm/guest``."""
    return resources.files(__package__).joinpath("guest", name).read_text("utf-8")


def gpu_record(gpu: Gpu = STRIX_HALO) -> dict[str, object]:
    """What ``guest/gpu-view.py`` shows: the files of a GPU's PCI device, KFD node and DRM card."""
    identity = {"vendor": "0x1002", "device": f"{gpu.pci_device:#06x}"}
    return {
        "pci": gpu.pci_address,
        "device": {**identity, "class": "0x038000", "revision": f"{gpu.revision:#04x}", "irq": "0"},
        "properties": kfd_properties(gpu, 0, "fixed"),
        "properties_without": kfd_properties(gpu, 0, "none"),
        "drm": {
            **identity,
            "uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={gpu.pci_address}",
            "mem_info_vram_total": str(gpu.vram),
            "mem_info_gtt_total": str(GIB // 4),
            "fw_version/mes_fw_version": f"{gpu.mes_firmware:#010x}",
        },
    }


def stub_amdgpu(folder: Path, release: str) -> None:
    """Put a stub amdgpu (no code, only modinfo) into the modules of a kernel below *folder*.

    The real one is 6 MB that nothing here could load; the kit only asks whether it is there.
    """
    write_module(
        folder / AMDGPU,
        name="amdgpu",
        version=None,
        srcversion=srcversion("vm", release),
        vermagic=vermagic(release),
    )


def digest() -> str:
    """Of everything that decides the image, but not of the mirror's state that day."""
    parts = [str(VERSION), SUITE, *PACKAGES, *MASKED, repr(sorted(FILES.items())), json.dumps(gpu_record())]
    parts += HARDWARE
    parts += [guest_file(name) for name in ("gpu-view.py", "gpu-view.service")]
    parts.append(run(["qemu-system-x86_64", "--version"]).stdout)  # a snapshot fits one QEMU only
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def base_image() -> Image:
    """The image, built once a recipe. Raises LabError where a program or the mirror is missing."""
    from .snapshot import discard, first_boot  # the machine needs an image

    missing = sorted(deb for program, deb in NEEDED.items() if shutil.which(program) is None)
    if missing:
        raise LabUsageError(
            f"the virtual machine needs packages; install them: apt-get install {' '.join(missing)}"
        )
    done = cache_dir() / "vm" / f"image-{digest()}"
    with exclusive(done.parent / "lock", "builds the virtual machine's disk"):
        if not done.is_dir():
            building = done.with_name(done.name + ".building")
            discard(building)
            building.mkdir(parents=True, mode=0o700)
            with step(f"building the virtual machine's disk (Debian {SUITE}, once)"):
                _build(building)
            with step("first boot of the virtual machine, for its snapshot"):
                first_boot(Image(building, _kernel(building)))
            building.rename(done)
    return Image(done, _kernel(done))


def _kernel(folder: Path) -> str:
    return (folder / "kernel").read_text("ascii").strip()


def _build(folder: Path) -> None:
    for key, comment in (("id_ed25519", "lemonade-lab vm"), ("host_key", "lemonade-lab vm guest")):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", folder / key])
    root = folder / "root"
    bootstrap(root)
    release = next(path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-*"))
    (folder / "kernel").write_text(release + "\n", "ascii")
    _furnish(root, folder, release)
    write_disk(root, folder / "disk.raw", release)
    run(["qemu-img", "convert", "-O", "qcow2", folder / "disk.raw", folder / "disk.qcow2"])
    (folder / "disk.raw").unlink()
    shutil.rmtree(root)


def bootstrap(root: Path) -> None:
    """Debian into the folder *root*, kernel and security updates included."""
    url = os.environ.get("LEMONADE_LAB_MIRROR") or mirror()
    # Laid down before anything is configured: the initramfs is made by these settings.
    before = [name for name in FILES if name.startswith(("etc/initramfs-tools", "etc/dpkg", "etc/apt"))]
    root.parent.joinpath("before").mkdir()
    for name in before:
        _put(root.parent / "before", name, FILES[name])
    run(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--format=directory"),
            '--aptopt=APT::Install-Recommends "false"',
            *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale", "info")),
            "--dpkgopt=force-unsafe-io",
            f"--include={','.join(PACKAGES)}",
            f'--essential-hook=cp -r {root.parent}/before/. "$1"',
            '--essential-hook=echo "grub-pc grub-pc/install_devices_empty boolean true"'
            ' | chroot "$1" debconf-set-selections',
            *(SUITE, str(root)),
            *(f"deb {url} {suite} main" for suite in (SUITE, f"{SUITE}-updates", OLD_SUITE)),
        ],
        timeout=900,
    )
    shutil.rmtree(root.parent / "before")


def _furnish(root: Path, folder: Path, release: str) -> None:
    for name, text in FILES.items():
        _put(root, name, text)
    (root / "etc/sudoers.d/deploy").chmod(0o440)
    for path in (root / "etc/apt/sources.list.d").iterdir():
        path.unlink()
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    for path in (root / "var/lib/apt/lists").glob("*_*"):
        path.unlink()
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    shutil.copy2(folder / "host_key", root / "etc/ssh/ssh_host_ed25519_key")
    shutil.copy2(folder / "host_key.pub", root / "etc/ssh/ssh_host_ed25519_key.pub")
    _put(root, "usr/lib/lemonade-lab/gpu-view.py", guest_file("gpu-view.py"))
    _put(root, "usr/lib/lemonade-lab/gpu.json", json.dumps(gpu_record()))
    _put(root, "usr/lib/lemonade-lab/first-kernel", release + "\n")
    _put(root, "usr/lib/systemd/system/lemonade-lab-gpu.service", guest_file("gpu-view.service"))
    stub_amdgpu(root / "usr/lib/modules" / release, release)
    run(["chroot", root, "depmod", release])
    run(["chroot", root, "systemctl", "--quiet", "enable", "systemd-networkd", "ssh", "lemonade-lab-gpu"])
    run(["chroot", root, "systemctl", "--quiet", "mask", *MASKED])
    run(["chroot", root, "useradd", "-m", "-s", "/bin/bash", "deploy"])
    home = root / "home/deploy/.ssh"
    home.mkdir(mode=0o700)
    shutil.copy2(folder / "id_ed25519.pub", home / "authorized_keys")
    run(["chroot", root, "chown", "-R", "deploy:deploy", "/home/deploy/.ssh"])


def write_disk(root: Path, disk: Path, release: str) -> None:
    """*root* onto an MBR disk with one ext4 partition and GRUB in the gap before it."""
    grub = root / "boot/grub/i386-pc"
    shutil.copytree(root / "usr/lib/grub/i386-pc", grub)
    _put(root, "boot/grub/grub.cfg", _first_menu(release))
    modules = ("biosdisk", "part_msdos", "ext2", "normal", "linux", "configfile", "search", "search_fs_uuid")
    make = ["grub-mkimage", "-O", "i386-pc", "-p", "(hd0,msdos1)/boot/grub"]
    run(["chroot", root, *make, "-o", "/boot/grub/i386-pc/core.img", *modules])
    core, boot = (grub / "core.img").read_bytes(), (grub / "boot.img").read_bytes()
    gap = (FIRST_SECTOR - 1) * SECTOR
    if len(core) > gap:
        raise LabError(f"GRUB's core image has {len(core)} bytes, the gap before the partition {gap}")
    sectors = DISK_MIB * 1024 * 1024 // SECTOR - FIRST_SECTOR
    chs = b"\xfe\xff\xff"  # "use the sector numbers"
    entry = b"\x80" + chs + b"\x83" + chs + struct.pack("<II", FIRST_SECTOR, sectors)
    record = boot[:440] + b"LAB1\0\0" + entry + bytes(48) + b"\x55\xaa"
    with disk.open("wb") as stream:
        stream.write(record + core)
        stream.truncate(DISK_MIB * 1024 * 1024)
    offset = f"offset={FIRST_SECTOR * SECTOR}"
    make = ["mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", str(root), "-E", offset, "-F", str(disk)]
    run([*make, f"{sectors * SECTOR // 1024}k"])


def _first_menu(release: str) -> str:
    """A menu for the first boot; in it the guest's own update-grub writes the real one."""
    return (
        "set timeout=0\nmenuentry 'first boot' {\n"
        f"  linux /boot/vmlinuz-{release} root=/dev/vda1 ro {CMDLINE} quiet\n"
        f"  initrd /boot/initrd.img-{release}\n}}\n"
    )


def _put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text, "utf-8")
