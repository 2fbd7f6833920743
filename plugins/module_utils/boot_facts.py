# SPDX-License-Identifier: Apache-2.0
"""What starts the host, and which kernel it starts next: for the report. Nothing is decided by it.

GRUB is read from grub.cfg and its environment block, systemd-boot from its loader.conf, entry files
(https://uapi-group.org/specifications/specs/boot_loader_specification) and EFI variables.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from . import grub
from .host import Host

GRUB2_CFG = "/boot/grub2/grub.cfg"  # Fedora, SUSE
GRUB2_ENV = "/boot/grub2/grubenv"
_ROOTS = ("/boot", "/boot/efi", "/efi")
_VARIABLE = "/sys/firmware/efi/efivars/{}-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
_KERNEL = re.compile(r"(?:vmlinu[zx]-|/(?:linux-)?)(\d[^/\s]*?)(?:/linux|/vmlinuz|\.efi)?$")


class Entry(NamedTuple):
    """One entry of the menu; ``release`` is the kernel it loads, "" where its file does not tell."""

    id: str
    title: str
    release: str
    recovery: bool = False


class BootLoader(NamedTuple):
    """``kind``: grub, systemd-boot, another one's own name, or "". Releases are "" where unknown."""

    kind: str
    entries: tuple[Entry, ...] = ()
    default: str = ""
    next: str = ""

    def public(self) -> dict[str, Any]:
        """For JSON: the releases that boot, and the menu."""
        return {
            "kind": self.kind,
            "default": self.default,
            "next": self.next,
            "entries": [entry._asdict() for entry in self.entries],
        }


def _flat(items: tuple[grub.Item, ...]) -> list[Entry]:
    found: list[Entry] = []
    for item in items:
        if item.submenu:
            found += _flat(tuple(item.children))
        else:
            found.append(Entry(item.id, item.title, item.release, item.recovery))
    return found


def _grub(host: Host) -> BootLoader | None:
    state = grub.read(host)
    if state is not None:
        return BootLoader("grub", tuple(_flat(state.menu)), state.default_release(), state.next_release())
    if not host.exists(GRUB2_CFG):
        return None
    entries = _entries(host, "/boot")  # blscfg
    values = grub.parse_env(host.read_bytes(GRUB2_ENV) or b"")
    first = entries[0].release if entries else ""
    return BootLoader(
        "grub",
        tuple(entries),
        _release(entries, values.get("saved_entry", "")) or first,
        _release(entries, values.get("next_entry", "")),
    )


def _entries(host: Host, root: str) -> list[Entry]:
    """Type 1 entries of the Boot Loader Specification, the newest first."""
    found = []
    for path in host.glob(f"{root}/loader/entries/*.conf"):
        fields = dict(re.findall(r"^(\w[\w-]*)[ \t]+(.*)$", host.read(path) or "", re.MULTILINE))
        name = path.rsplit("/", 1)[1].removesuffix(".conf")
        image = _KERNEL.search(str(fields.get("linux") or fields.get("efi") or ""))
        release = fields.get("version", "").strip() or (image[1] if image else "")
        found.append(Entry(name, fields.get("title", "").strip(), release))
    return sorted(found, key=lambda entry: _numbers(entry.release), reverse=True)


def _numbers(release: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", release)]


def _release(entries: list[Entry], spec: str) -> str:
    """Release of the entry that an id, a title or a pattern of ids names."""
    name = spec.removesuffix(".conf")
    for entry in entries:
        if name and (name in (entry.id, entry.title) or fnmatchcase(entry.id, name)):
            return entry.release
    return ""


def _efi_text(host: Host, variable: str) -> str:
    """A variable of https://systemd.io/BOOT_LOADER_INTERFACE: UTF-16 behind four bytes of attributes."""
    data = host.read_bytes(_VARIABLE.format(variable)) or b""
    return data[4:].decode("utf-16-le", "replace").strip("\0 ")


def running_loader(host: Host) -> str:
    """What the boot loader calls itself, "" where it says nothing."""
    return _efi_text(host, "LoaderInfo")


def _systemd_boot(host: Host) -> BootLoader | None:
    for root in _ROOTS:
        text = host.read(f"{root}/loader/loader.conf")
        if text is None:
            continue
        entries = _entries(host, root)
        configured = (
            dict(re.findall(r"^(\w[\w-]*)[ \t]+(.*)$", text, re.MULTILINE)).get("default", "").strip()
        )
        default = _efi_text(host, "LoaderEntryDefault") or configured
        first = entries[0].release if entries else ""
        return BootLoader(
            "systemd-boot",
            tuple(entries),
            _release(entries, default) or first,
            _release(entries, _efi_text(host, "LoaderEntryOneShot")),
        )
    return None


def read(host: Host) -> BootLoader:
    """The loader that started the host; where it does not say, the one whose files are there."""
    told = running_loader(host)
    if told and not told.startswith(("GRUB", "systemd-boot")):
        return BootLoader(told)
    readers = (_systemd_boot, _grub) if told.startswith("systemd-boot") else (_grub, _systemd_boot)
    for reader in readers:
        found = reader(host)
        if found is not None:
            return found
    return BootLoader(told or ("extlinux" if host.exists("/boot/extlinux/extlinux.conf") else ""))
