# SPDX-License-Identifier: Apache-2.0
"""A simulated host's disk, built piece by piece for tests of the lab's firmware."""

from __future__ import annotations

import gzip
from pathlib import Path

from lemonade_deploy.lab import grubenv, kmod

OLD, NEW = "6.14.0-37-generic", "7.0.0-31-generic"
UUID = "0b9e0f5c"
GFX = "gfx1151,gfx1100"
IN_TREE = "kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko.zst"
DKMS = "updates/dkms/amdgpu.ko.zst"

# As grub-mkconfig 2.14 writes it, shortened.
HEADER = """\
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${{next_entry}}" ] ; then
   set default="${{next_entry}}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="{default}"
fi
if [ x"${{feature_menuentry_id}}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
export menuentry_id_option
function load_video {{
  if [ x$grub_platform = xefi ]; then
    insmod efi_gop
  fi
}}
if loadfont $font ; then
  set gfxmode=auto
  load_video
fi
{extra}
"""
ENTRY = """\
menuentry '{title}' --class ubuntu --class os $menuentry_id_option '{identity}' {{
	load_video
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	set root='hd0,gpt2'
	echo	'Loading Linux {kernel} ...'
	linux	/boot/vmlinuz-{kernel} root=/dev/nvme0n1p2 ro  {arguments}
	initrd	/boot/initrd.img-{kernel}
}}
"""


def entry_id(kernel: str) -> str:
    """The id of a kernel's entry, with its submenu, as grub-set-default takes it."""
    return f"gnulinux-advanced-{UUID}>gnulinux-{kernel}-advanced-{UUID}"


def entry(kernel: str, identity: str, title: str = "Ubuntu", arguments: str = "quiet splash") -> str:
    """One menuentry."""
    return ENTRY.format(kernel=kernel, identity=identity, title=title, arguments=arguments)


class Disk:
    """A disk below *root* with GRUB, kernels and modules."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file("etc/group", "root:x:0:\nvideo:x:44:\nrender:x:992:\n")
        self.kernels: list[str] = []

    def file(self, path: str, content: str | bytes) -> Disk:
        """Write a file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        return self

    def kernel(self, release: str, cwsr: str = "none", *, version: str | None = None) -> Disk:
        """A kernel with its own amdgpu, or (with a version) AMD's from DKMS over it."""
        self.kernels.insert(0, release)
        self.file(f"boot/vmlinuz-{release}", b"kernel")
        path, beside = (
            (DKMS, "updates/dkms/amdttm.ko.zst")
            if version
            else (IN_TREE, "kernel/drivers/gpu/drm/ttm/ttm.ko")
        )
        module = kmod.module_bytes(
            name="amdgpu",
            version=version,
            srcversion="A" * 23,
            vermagic=kmod.vermagic(release),
            lab_cwsr=cwsr,
            lab_gfx=GFX,
        )
        base = f"lib/modules/{release}"
        self.file(f"{base}/{path}", kmod.zstd_stored(module))
        self.file(f"{base}/modules.dep", f"{beside}:\n{path}: {beside}\n")
        return self.initrd(release)

    def initrd(self, release: str, **more: bytes) -> Disk:
        """(Re)make an initramfs from what is on the disk now, as update-initramfs does."""
        files = {f"usr/{path}": data for path, data in more.items()}
        for folder in ("etc/modprobe.d", f"lib/modules/{release}"):
            for path in sorted((self.root / folder).rglob("*")):
                if path.is_file():
                    name = str(path.relative_to(self.root))
                    files[f"usr/{name}" if name.startswith("lib/") else name] = path.read_bytes()
        return self.file(f"boot/initrd.img-{release}", cpio({"early": b"x"}) + gzip.compress(cpio(files)))

    def grub(self, default: str = "0", extra: str = "", arguments: str = "quiet splash", **env: str) -> Disk:
        """Write grub.cfg for the kernels, the newest first, and grubenv."""
        menu = entry(self.kernels[0], f"gnulinux-simple-{UUID}", arguments=arguments)
        inner = "".join(
            entry(kernel, f"gnulinux-{kernel}-advanced-{UUID}", f"Ubuntu, with Linux {kernel}", arguments)
            for kernel in self.kernels
        )
        menu += f"submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-{UUID}' {{\n{inner}}}\n"
        self.file("boot/grub/grub.cfg", HEADER.format(default=default, extra=extra) + menu)
        return self.file("boot/grub/grubenv", grubenv.render(env))

    def env(self) -> dict[str, str]:
        """The variables in grubenv."""
        return grubenv.load(self.root / "boot/grub/grubenv")


def cpio(files: dict[str, bytes]) -> bytes:
    """A newc archive."""
    archive = b""
    for number, (name, data) in enumerate([*files.items(), ("TRAILER!!!", b"")]):
        encoded = name.encode() + b"\0"
        fields = [number, 0o100644, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0]
        archive += b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        archive += b"\0" * (-len(archive) % 4) + data
        archive += b"\0" * (-len(archive) % 4)
    return archive + b"\0" * (-len(archive) % 512)
