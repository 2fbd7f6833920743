# SPDX-License-Identifier: Apache-2.0
"""The base root that all lab hosts share: Debian with an Ubuntu 24.04 face.

No Ubuntu archive is asked: the root is Debian forky (which has the packages that
Lemonade Server depends on), calls itself Ubuntu 24.04 in os-release, says that this
is simulated, and knows only the lab's own apt sources.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from importlib import resources
from pathlib import Path

from .paths import cache_dir
from .say import step
from .shell import LabError, run
from .state import exclusive

SUITE = "forky"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "openssh-server", "sudo", "passwd", "mount", "procps"),
    *("python3", "python3-apt", "ca-certificates", "gnupg", "curl", "iproute2", "zstd"),
    *("kmod", "initramfs-tools", "dkms", "make", "patch", "pciutils", "linux-base"),
    *("grub-common", "grub2-common", "grub-pc-bin"),
    "libnuma1",  # the vLLM CPU engine links it
)
# Installed by the role under test: only what it depends on is in the root.
DEPENDENCIES_OF = "lemonade-server"

OS_RELEASE = """\
PRETTY_NAME="Ubuntu 24.04.3 LTS (simulated by lemonade-deploy's lab on Debian)"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.3 LTS (Noble Numbat)"
VERSION_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=noble
LAB_SIMULATED=1
"""

# Units that only slow a container's boot down or would act on the machine.
MASKED = (
    *("systemd-networkd.service", "systemd-networkd.socket", "systemd-networkd-wait-online.service"),
    *("systemd-timesyncd.service", "systemd-resolved.service", "systemd-pstore.service"),
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer"),
    *("fstrim.timer", "getty@tty1.service", "console-getty.service", "e2scrub_reap.service"),
)

# Runs in the new root. The install is simulated first, because the package itself must not be there.
RESOLVE = (
    f"apt-get -s install {DEPENDENCIES_OF} | sed -n 's/^Inst \\([^ ]*\\).*/\\1/p'"
    f" | grep -vx {DEPENDENCIES_OF} | xargs apt-get -y install"
)


def guest_file(name: str) -> bytes:
    """A file of ``lab/guest`` that goes into the hosts."""
    return resources.files(__package__).joinpath("guest", name).read_bytes()


# file of lab/guest -> (path in the root, mode)
GUEST_FILES = {
    "firmware-view.service": ("usr/lib/systemd/system/lemonade-lab-firmware.service", 0o644),
    "firmware-view": ("usr/lib/lemonade-lab/firmware-view", 0o755),
    "uname": ("usr/bin/uname", 0o755),
    "systemd-detect-virt": ("usr/bin/systemd-detect-virt", 0o755),
    "grub-editenv": ("usr/bin/grub-editenv", 0o755),
    "grub-probe": ("usr/sbin/grub-probe", 0o755),
    "framebuffer-hook": ("usr/share/initramfs-tools/hooks/lemonade-lab-framebuffer", 0o755),
}
DIVERTED = tuple(
    f"/{path}"
    for path in (
        "usr/bin/uname",
        "usr/bin/systemd-detect-virt",
        "usr/bin/grub-editenv",
        "usr/sbin/grub-probe",
    )
)


# Files with fixed content: path in the root -> (text, mode).
FILES = {
    "usr/lib/os-release": (OS_RELEASE, 0o644),
    "etc/sudoers.d/deploy": ("deploy ALL=(ALL) NOPASSWD:ALL\n", 0o440),
    "etc/ssh/sshd_config.d/lab.conf": ("PasswordAuthentication no\nUseDNS no\nMaxStartups 100\n", 0o644),
    "etc/machine-id": ("", 0o644),
    # Fast archives; a lab host has few modules.
    "etc/initramfs-tools/conf.d/lab.conf": ("COMPRESS=gzip\nCOMPRESSLEVEL=1\nRESUME=none\n", 0o644),
    "etc/default/grub": (
        "GRUB_DEFAULT=0\nGRUB_TIMEOUT_STYLE=hidden\nGRUB_TIMEOUT=0\nGRUB_DISTRIBUTOR=Ubuntu\n"
        'GRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\nGRUB_CMDLINE_LINUX=""\nGRUB_DISABLE_OS_PROBER=true\n',
        0o644,
    ),
    # The kernels' hooks only renew a grub.cfg that is there (grub-install makes the first one).
    "boot/grub/grub.cfg": ("", 0o644),
    # One id for all hosts: it stands in GRUB's menu entries, which belong to shared layers.
    "usr/lib/lemonade-lab/root-uuid": ("0b9e0f5c-6f0e-4d0a-9d3c-4c454d4f4e21\n", 0o644),
}
# To be counted up when the code below makes something else of the same data.
VERSION = 2


def mirror() -> str:
    """The Debian mirror that this machine's own apt uses; LabError where it uses none."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(ORIGIN)|$(CODENAME)"]
    for line in run(targets).stdout.splitlines():
        uri, origin, codename = line.split("|", 2)
        if origin == "Debian" and not codename.endswith("-security"):
            return uri
    # Without fetched lists apt knows no origin: then the folder's usual name says it.
    for line in run([*targets, "--no-release-info"]).stdout.splitlines():
        uri = line.partition("|")[0]
        if uri.rstrip("/").endswith("/debian"):
            return uri
    raise LabError(
        "this machine's apt knows no Debian mirror, from which the lab's root is made;"
        " set LEMONADE_LAB_MIRROR to the URL of one"
    )


def digest() -> str:
    """Digest of everything that decides the root's content (not of the mirror's state that day)."""
    parts = [str(VERSION), SUITE, *PACKAGES, RESOLVE, repr(sorted(FILES.items())), *MASKED, *DIVERTED]
    parts += [repr(sorted(GUEST_FILES.items()))]
    text = "\0".join(parts).encode() + b"".join(guest_file(name) for name in sorted(GUEST_FILES))
    return hashlib.sha256(text).hexdigest()[:16]


def base_root() -> Path:
    """The base root, built once a recipe and kept below the cache folder."""
    done = cache_dir() / "roots" / f"base-{digest()}"
    if done.is_dir():
        return done
    building = done.with_name(done.name + ".building")
    with exclusive(done.parent / "lock", "makes the base root"):
        if done.is_dir():
            return done
        if building.exists():
            shutil.rmtree(building)
        with step(f"making the base root (Debian {SUITE} by mmdebstrap, once)"):
            _bootstrap(building)
            _make_it_ubuntu_like(building)
        building.rename(done)
    return done


def _bootstrap(root: Path) -> None:
    url = os.environ.get("LEMONADE_LAB_MIRROR") or mirror()
    run(
        [
            *("mmdebstrap", "--quiet", "--variant=apt", "--mode=root", "--format=directory"),
            # A mirror's snapshot of a testing suite may be past its Valid-Until.
            '--aptopt=Acquire::Check-Valid-Until "false"',
            '--aptopt=APT::Install-Recommends "false"',
            "--dpkgopt=force-unsafe-io",
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            f"--include={','.join(PACKAGES)}",
            f'--customize-hook=chroot "$1" sh -c "{RESOLVE}"'.replace("\\1", "\\\\1"),
            *(SUITE, str(root), url),
        ]
    )


def _put(root: Path, path: str, content: str | bytes, mode: int = 0o644) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.encode() if isinstance(content, str) else content)
    target.chmod(mode)


def _make_it_ubuntu_like(root: Path) -> None:
    for source in (root / "etc/apt/sources.list.d").iterdir():
        source.unlink()
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    for settings in (root / "etc/apt/apt.conf.d").glob("*mmdebstrap*"):
        settings.unlink()
    for path in DIVERTED:
        run(["chroot", root, "dpkg-divert", "--local", "--rename", "--divert", path + ".machine", path])
    for name, (path, mode) in GUEST_FILES.items():
        _put(root, path, guest_file(name), mode)
    for path, (text, mode) in FILES.items():
        _put(root, path, text, mode)
    run(["chroot", root, "systemctl", "enable", "--quiet", "lemonade-lab-firmware.service"])
    run(["chroot", root, "systemctl", "mask", "--quiet", *MASKED])
    run(["chroot", root, "useradd", "-m", "-s", "/bin/bash", "deploy"])
    run(["chroot", root, "grub-editenv", "/boot/grub/grubenv", "create"])
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
