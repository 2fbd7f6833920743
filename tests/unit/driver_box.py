# SPDX-License-Identifier: Apache-2.0
"""A fixture tree whose commands do something: enough of apt, dpkg and GRUB for the driver layers."""

from __future__ import annotations

import gzip
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trees import OLD_KERNEL, Tree

from lemonade_deploy.domain import apt_fetch, driver_state, grub, trial_menu
from lemonade_deploy.domain.change import Change
from lemonade_deploy.domain.host import Completed, Host

UUID = "0b9e0f5c-6f0e-4d0a-9d3c-4c454d4f4e21"
Answer = Callable[[Sequence[str], Mapping[str, str]], "Completed | None"]


def menu_id(release: str) -> str:
    """The id grub-mkconfig gives a kernel's entry."""
    return f"gnulinux-advanced-{UUID}>gnulinux-{release}-advanced-{UUID}"


def grub_cfg(*releases: str, default: str = "0", initrd: bool = True) -> str:
    """A grub.cfg in grub-mkconfig's form; the first release is the newest."""
    entry = (
        "{indent}menuentry 'Debian GNU/Linux{title}' --class debian --class os "
        "$menuentry_id_option '{id}' {{\n"
        "{indent}\tload_video\n{indent}\tinsmod gzio\n"
        "{indent}\tif [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi\n"
        "{indent}\tlinux\t/boot/vmlinuz-{release} root=UUID=" + UUID + " ro {args}\n"
        "{initrd}{indent}}}\n"
    )

    def one(title: str, ident: str, release: str, args: str = "quiet", indent: str = "") -> str:
        line = f"{indent}\tinitrd\t/boot/initrd.img-{release}\n" if initrd else ""
        return entry.format(title=title, id=ident, release=release, args=args, indent=indent, initrd=line)

    text = (
        'if [ "${next_entry}" ] ; then\n   set default="${next_entry}"\n   set next_entry=\n'
        f'   save_env next_entry\n   set boot_once=true\nelse\n   set default="{default}"\nfi\n'
        'function savedefault {\n  if [ -z "${boot_once}" ]; then\n    saved_entry="${chosen}"\n  fi\n}\n'
    )
    text += one("", f"gnulinux-simple-{UUID}", releases[0])
    advanced = f"gnulinux-advanced-{UUID}"
    text += f"submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option '{advanced}' {{\n"
    for release in releases:
        title = f", with Linux {release}"
        text += one(title, f"gnulinux-{release}-advanced-{UUID}", release, indent="\t")
        recovery = f"gnulinux-{release}-recovery-{UUID}"
        text += one(f"{title} (recovery mode)", recovery, release, "single", "\t")
    return text + "}\nmenuentry 'UEFI Firmware Settings' --id 'uefi-firmware' {\n\tfwsetup\n}\n"


def initrd(release: str, *modules: str) -> bytes:
    """An initial ramdisk with /init and these modules (paths below the release's folder)."""
    names = ["init", *(f"usr/lib/modules/{release}/{path}" for path in modules), "TRAILER!!!"]
    archive = b""
    for name in names:
        fields = [0, 0o100755, 0, 0, 1, 0, 0, 0, 0, 0, 0, len(name) + 1, 0]
        header = b"070701" + "".join(f"{field:08X}" for field in fields).encode()
        archive += header + name.encode() + b"\0"
        archive += b"\0" * (-len(archive) % 4)
    return gzip.compress(archive, mtime=0)


class Box(Tree):
    """A tree with GRUB's tools and whatever else :meth:`on` adds; unknown commands succeed silently."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers: list[tuple[tuple[str, ...], Answer]] = []
        self.env: list[Mapping[str, str]] = []
        self.host = Host(str(root), runner=self._answer)

    def on(
        self, *words: str, rc: int = 0, stdout: str = "", stderr: str = "", do: Answer | None = None
    ) -> Box:
        """Answer commands that contain all *words* in this order; a later rule wins."""

        def fixed(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
            return Completed(tuple(argv), rc, stdout, stderr)

        self.answers.append((words, do or fixed))
        return self

    def _answer(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: str | None, timeout: float | None
    ) -> Completed:
        self.commands.append(tuple(argv))
        self.env.append(env)
        for words, answer in reversed(self.answers):
            rest = iter(argv)
            if all(word in rest for word in words):
                done = answer(argv, env)
                if done is not None:
                    return done
        return self._builtin(argv)

    def _builtin(self, argv: Sequence[str]) -> Completed:
        if argv[0] in ("grub-set-default", "grub-reboot", "grub-editenv"):
            self._grub(argv)
        elif argv[0] == "grub-mkconfig" and "-o" in argv:
            self.write_menu(argv[argv.index("-o") + 1])
        elif argv[0] == "grub-mkconfig":
            return Completed(tuple(argv), 0, self.menu(), "")
        return Completed(tuple(argv), 0, "", "")

    def _grub(self, argv: Sequence[str]) -> None:
        values = grub.parse_env((self.root / "boot/grub/grubenv").read_bytes())
        if argv[0] == "grub-reboot":
            values["next_entry"] = argv[1]
        else:
            values.pop("next_entry", None)
            if argv[0] == "grub-set-default":
                values["saved_entry"] = argv[1]
        self.file("/boot/grub/grubenv", grub.format_env(values))

    def kernels(self, *releases: str) -> Box:
        """Installed kernels, in GRUB's menu too (newest first)."""
        for release in releases:
            self.file(f"/boot/vmlinuz-{release}").file(f"/boot/initrd.img-{release}", initrd(release))
            self.file(f"/lib/modules/{release}/modules.dep", "kernel/fs/ext4/ext4.ko.zst:\n")
        self.file("/boot/grub/grubenv", grub.format_env({}))
        self.file("/etc/default/grub", "GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\n")
        self.write_menu()
        return self

    def write_menu(self, path: str = "/boot/grub/grub.cfg") -> None:
        """What grub-mkconfig does."""
        self.file(path, self.menu())

    def menu(self) -> str:
        """What grub-mkconfig prints: the menu of what is in /boot, the default of /etc/default."""
        saved = grub.settings(self.host).get("GRUB_DEFAULT") == "saved"
        names = [path[len("/boot/vmlinuz-") :] for path in self.host.glob("/boot/vmlinuz-*")]
        names.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
        text = grub_cfg(*names, default="${saved_entry}" if saved else "0")
        at = text.index("menuentry ")
        return text[:at] + self._our_entries(text[at:]) + text[at:]

    def _our_entries(self, linux: str) -> str:
        """What our script in /etc/grub.d really prints, run as grub-mkconfig runs it."""
        ours = self.root / trial_menu.SCRIPT.lstrip("/")
        if not ours.exists():
            return ""
        (ours.parent / "linux.txt").write_text(linux)
        (ours.parent / "10_linux").write_text('#!/bin/sh\ncat "${0%/*}/linux.txt"\n')
        (ours.parent / "10_linux").chmod(0o755)
        return subprocess.run([ours], capture_output=True, text=True, check=True).stdout

    def ran(self, program: str) -> list[tuple[str, ...]]:
        """Every call of a program."""
        return [argv for argv in self.commands if argv[0] == program]

    def text(self, path: str) -> str | None:
        """A file's text, or None."""
        return self.host.read(path)

    def serve(self, files: Mapping[str, bytes], trouble: str = "404  Not Found [IP: 192.0.2.1 443]") -> Box:
        """What apt's helper can fetch, by address; anything else answers with *trouble*."""

        def fetched(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
            uri, target = argv[-2:]
            if uri not in files:
                told = f"E: Failed to fetch {uri}  {trouble}\nE: Download Failed\n"
                return Completed(tuple(argv), 100, "", told)
            self.file(target, files[uri])
            return Completed(tuple(argv), 0, "", "")

        return self.on(apt_fetch.HELPER, do=fetched)


def names(changes: Sequence[Change]) -> list[tuple[str, str]]:
    """Object and action of each change."""
    return [(change.object, change.action) for change in changes]


def purge_packages(box: Box) -> None:
    """Let dpkg and AMD's scripts do their part of a purge."""

    def gone(_argv: Sequence[str], _env: Mapping[str, str]) -> None:
        box.dpkg({})

    box.on("apt-get", "purge", do=gone)
    box.on("apt-get", "-s", "purge", stdout="Purg amdgpu-dkms [1]\nPurg amdgpu-dkms-firmware [1]\n")


def dirty(tmp_path: Path) -> Box:
    """AMD's 6.16.13 of 30.30, built for an old kernel and loaded."""
    box = Box(tmp_path)
    box.kernel(OLD_KERNEL).loaded("dkms", OLD_KERNEL).module(OLD_KERNEL, "dkms").module(OLD_KERNEL, "in-tree")
    box.dkms(built=[OLD_KERNEL]).dkms_packages().amd_source().distribution().file(driver_state.HOOK)
    purge_packages(box)
    return box
