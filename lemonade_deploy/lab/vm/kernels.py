# SPDX-License-Identifier: Apache-2.0
"""The newer kernel: Debian's own of trixie-backports, repacked with only the modules this guest needs.

Real are kernel image, modules, maintainer scripts and the packages' names and versions. Left out are
5000 modules and the documentation; amdgpu is a stub without code (see ``image.stub_amdgpu``). The
faults are put into the same packages: what a broken build would bring.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..kmod import read_modinfo, srcversion, vermagic, write_module
from ..paths import cache_dir
from ..say import step
from ..services.upstream import fetch
from ..shell import LabError, run
from ..state import exclusive
from .image import SUITE, stub_amdgpu

BACKPORTS = f"{SUITE}-backports"
METAS = ("linux-image-amd64", "linux-base-amd64", "linux-modules-amd64")
# Every module that the guest, its initramfs and systemd may ask for; their dependencies follow.
MODULES = (
    *("virtio_blk", "virtio_net", "virtio-rng", "ext4", "autofs4", "i6300esb", "button", "evdev"),
    *("binfmt_misc", "efi_pstore", "qemu_fw_cfg", "configfs", "fuse", "ip_tables", "softdog"),
)
NIC = "virtio_net"

PANIC_SCRIPT = """\
#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Lab: a kernel that panics as soon as its initramfs runs.
case "$1" in prereqs) exit 0 ;; esac
read -r release < /proc/sys/kernel/osrelease
[ "$release" = "{release}" ] && echo c > /proc/sysrq-trigger
exit 0
"""
LOSE_UNIT = """\
# SPDX-License-Identifier: Apache-2.0
[Unit]
Description=Lab: the newer kernel's image gets lost on the way down
DefaultDependencies=no
Before=umount.target reboot.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'rm -f /boot/vmlinuz-{release}; sync'
"""


@dataclass(frozen=True)
class Kernels:
    """A kernel's packages, as fetched (``folder``), and its release."""

    folder: Path
    release: str
    version: str

    def debs(self) -> list[Path]:
        """The packages that the guest's repository serves."""
        return sorted(self.folder.glob("*.deb"))


def digest() -> str:
    """Of what decides the packages, but not of the mirror's state that day."""
    text = Path(__file__).read_text("utf-8")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def newer_kernel() -> Kernels:
    """The newer kernel, fetched and repacked once. Raises LabError."""
    done = cache_dir() / "vm" / f"kernel-{digest()}"
    with exclusive(done.parent / "lock", "repacks the newer kernel"):
        if not done.is_dir():
            building = done.with_name(done.name + ".building")
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(parents=True)
            with step(f"fetching and repacking the kernel of {BACKPORTS} (once)"):
                _repack_all(building)
            building.rename(done)
    return _load(done)


def _load(folder: Path) -> Kernels:
    release, version = (folder / "release").read_text("ascii").split()
    return Kernels(folder, release, version)


def _repack_all(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="lemonade-lab-kernel-", dir=folder.parent) as scratch:
        metas = fetch(Path(scratch) / "metas", METAS, suite=BACKPORTS)
        image = next(deb for deb in metas if deb.name.startswith("linux-image-amd64_"))
        depends = run(["dpkg-deb", "-f", image, "Depends"]).stdout
        found = re.search(r"linux-image-(\S+) \(= (\S+?)\)", depends)
        if found is None:
            raise LabError(f"{image.name} names no kernel: {depends.strip()}")
        release, version = found.groups()
        parts = [f"linux-{part}-{release}" for part in ("image", "base", "binary", "modules")]
        # linux-base: the newer kernel's scripts want a newer one than trixie has.
        debs = fetch(Path(scratch) / "parts", [*parts, "linux-base"], suite=BACKPORTS)
        for deb in [*metas, *debs]:
            if deb.name.startswith((f"linux-base-{release}_", f"linux-modules-{release}_")):
                repack(deb, folder, lambda root: slim(root, release))
            elif deb.name.startswith(f"linux-binary-{release}_"):
                repack(deb, folder, lambda _root: None)  # only unpacked faster under emulation
            else:
                shutil.copy2(deb, folder)
    (folder / "release").write_text(f"{release} {version}\n", "ascii")


def repack(deb: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    """*deb* unpacked, changed and packed again into *folder*, under its name and version."""
    with tempfile.TemporaryDirectory(prefix="lemonade-lab-deb-", dir=folder) as scratch:
        root = Path(scratch) / "root"
        run(["dpkg-deb", "-R", deb, root])
        change(root)
        (root / "DEBIAN/md5sums").unlink(missing_ok=True)
        target = folder / deb.name
        run(["dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "--build", root, target])
    return target


def slim(root: Path, release: str) -> None:
    """Leave only :data:`MODULES` and what they depend on; a stub takes amdgpu's place."""
    shutil.rmtree(root / "usr/share", ignore_errors=True)
    base = root / "usr/lib/modules" / release
    files = {_plain(path.name.partition(".ko")[0]): path for path in base.rglob("*.ko*")}
    if not files:
        return
    keep, ask = set(), [_plain(name) for name in MODULES]
    while ask:
        name = ask.pop()
        if name not in keep and name in files:  # one that is not there is built in
            keep.add(name)
            ask += [_plain(other) for other in _depends(files[name]) if other]
    for name in files.keys() - keep:
        files[name].unlink()
    if _plain(NIC) not in keep:
        raise LabError(f"{release} has no module {NIC}: the faults cannot be made")
    stub_amdgpu(base, release)


def _depends(module: Path) -> list[str]:
    data = module.read_bytes()
    plain = lzma.decompress(data) if module.suffix == ".xz" else data
    return read_modinfo(plain).get("depends", "").split(",")


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _panics(root: Path, release: str) -> None:
    script = root / "usr/share/initramfs-tools/scripts/init-top/lemonade-lab-panic"
    script.parent.mkdir(parents=True)
    script.write_text(PANIC_SCRIPT.format(release=release), "ascii")
    script.chmod(0o755)


def _loses_image(root: Path, release: str) -> None:
    unit = root / "usr/lib/systemd/system/lemonade-lab-lose.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(LOSE_UNIT.format(release=release), "ascii")
    wants = root / "usr/lib/systemd/system/reboot.target.wants"
    wants.mkdir()
    (wants / unit.name).symlink_to(f"../{unit.name}")


def _nic_driver(root: Path, release: str) -> Path:
    return next((root / "usr/lib/modules" / release).rglob(f"{NIC}.ko*"))


def _nic_dead(root: Path, release: str) -> None:
    # There for everybody who looks, but it holds no code: the kernel will not load it.
    driver = _nic_driver(root, release)
    driver.unlink()
    write_module(
        driver.with_name(f"{NIC}.ko"),
        name=NIC,
        version=None,
        srcversion=srcversion("vm", NIC),
        vermagic=vermagic("0-damaged"),
        aliases=("virtio:d00000001v*",),
    )


def _nic_missing(root: Path, release: str) -> None:
    _nic_driver(root, release).unlink()


# fault -> (the package that has it, the change)
FAULTS: Mapping[str, tuple[str, Callable[[Path, str], None]]] = {
    "panics": ("base", _panics),
    "loses-image": ("base", _loses_image),
    "nic-dead": ("modules", _nic_dead),
    "nic-missing": ("modules", _nic_missing),
}


def with_fault(kernels: Kernels, fault: str) -> Path:
    """The one package of *kernels* that has the fault, under the sound one's name and version."""
    part, change = FAULTS[fault]
    sound = next(kernels.folder.glob(f"linux-{part}-{kernels.release}_*.deb"))
    folder = kernels.folder / fault
    with exclusive(kernels.folder.parent / "lock", "repacks the newer kernel"):
        made: Sequence[Path] = sorted(folder.glob("*.deb"))
        if made:
            return made[0]
        folder.mkdir(exist_ok=True)
        return repack(sound, folder, lambda root: change(root, kernels.release))
