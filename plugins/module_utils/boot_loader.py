# SPDX-License-Identifier: Apache-2.0
"""Whether a kernel can be booted once on this host and the old one come back: GRUB, and a block it can write.

GRUB itself empties ``next_entry`` when it takes it. Where it cannot write the block, the one-shot entry
stays for ever and the box loops into a kernel that does not work. What it can write is decided by the
file system that holds /boot/grub and the devices beneath it: GRUB's 00_header names the file systems
(btrfs, zfs, squashfs …) and the abstractions (diskfilter, lvm) for which it "lacks write support".
"""

from __future__ import annotations

from . import grub, mounts
from .boot_facts import running_loader
from .host import Host
from .refusal import Refused

FOLDER = "/boot/grub"
# By mountinfo's names. Blocks of these are not where they are found, or have checksums.
_NOT_WRITTEN = frozenset({"btrfs", "zfs", "f2fs", "bcachefs", "nilfs2", "squashfs", "erofs", "iso9660"})
# By grub-probe's names: those whose blocks GRUB writes in place.
_WRITTEN = frozenset({"ext2", "xfs", "fat", "exfat", "jfs", "reiserfs"})
_OTHERS = (  # loader, the files that show it, how a kernel is booted once by hand
    (
        "systemd-boot",
        ("/boot/loader/loader.conf", "/boot/efi/loader/loader.conf", "/efi/loader/loader.conf"),
        "`bootctl set-oneshot ENTRY`",
    ),
    ("extlinux", ("/boot/extlinux/extlinux.conf", "/extlinux.conf"), "an entry of its own in extlinux.conf"),
    ("rEFInd", ("/boot/efi/EFI/refind/refind.conf",), "rEFInd's menu"),
)
_BY_HAND = (
    "by hand: install the kernel with apt, boot it once{0}, see that `uname -r` and the GPU are right, "
    "make it the default, then run again with kernel_source: keep"
)
KIND = "boot-no-fallback"  # the finding
MANUAL = "docs/kernel.md, 'By hand'"


def demand(host: Host) -> None:
    """Refuse what could not fall back by itself. Raises Refused, which names the manual way."""
    _demand_grub(host)
    _demand_unattended(host)
    _demand_writable(host)


def _refused(found: str, how: str = "") -> Refused:
    once = f" ({how})" if how else ""
    remedy = _BY_HAND.format(once)
    told = f"{found}: a kernel that does not work could not fall back by itself."
    return Refused(told, f"{remedy} ({MANUAL}).", KIND)


def _demand_grub(host: Host) -> None:
    loader = running_loader(host)
    text = host.read(grub.GRUB_CFG)
    if loader and not loader.startswith("GRUB"):
        how = next((how for name, _files, how in _OTHERS if loader.startswith(name)), "")
        raise _refused(f"{loader} starts this host, not GRUB", how)
    if text is None:
        for name, files, how in _OTHERS:
            if any(host.exists(path) for path in files):
                raise _refused(f"{name} starts this host, not GRUB", how)
        raise _refused(f"this host has no {grub.GRUB_CFG}: another boot loader starts it")
    if any(line.split()[:1] == ["blscfg"] for line in text.splitlines()):
        raise _refused(
            f"{grub.GRUB_CFG} takes its entries from /boot/loader/entries (blscfg)", "`grub2-reboot ENTRY`"
        )


def _demand_unattended(host: Host) -> None:
    """GRUB must boot without anybody at its keyboard, after a failed boot as well."""
    state = grub.read(host)
    if state is not None and state.waits:
        raise Refused(
            f"{state.waits}: a box without a keyboard would not come back from a reboot.",
            "give the timeouts a number of seconds, or the entries --unrestricted (CLASS in "
            "/etc/grub.d/10_linux), then update-grub; else set kernel_source: keep and reboot by hand",
            KIND,
        )


def _demand_writable(host: Host) -> None:
    mount = mounts.holding(host, FOLDER)
    if mount is None:
        raise _refused(f"{mounts.MOUNTINFO} does not tell what holds {FOLDER}")
    where = f"{FOLDER} is on {mount.source} ({mount.type}, mounted at {mount.point})"
    if mount.type in _NOT_WRITTEN:
        raise _refused(f"{where}: GRUB cannot write its environment block on {mount.type}")
    if "ro" in mount.options:
        raise Refused(f"{where} and mounted read-only.", f"mount -o remount,rw {mount.point}")
    if "ro" in mount.super_options:
        raise Refused(
            f"{where}, and the file system itself is read-only: the kernel does that after an error.",
            f"see `dmesg`, repair it (fsck at the next boot), then `mount -o remount,rw {mount.point}`",
        )
    for device in mounts.stack(host, mount):
        layer = _layer(host, device)
        if layer:
            raise _refused(f"{where}: GRUB cannot write its environment block through {layer}")
    if host.readlink(grub.GRUBENV) is not None:
        raise _refused(f"{grub.GRUBENV} is a link: GRUB reads another block than grub-set-default writes")
    _demand_grubs_view(host, where)


def _layer(host: Host, device: str) -> str:
    """What GRUB does not write through, "" for a plain disk or partition."""
    if host.is_dir(f"{device}/md"):
        return f"software RAID ({device.rpartition('/')[2]})"
    if host.is_dir(f"{device}/bcache"):
        return "bcache"
    uuid = host.value(f"{device}/dm/uuid")
    if uuid is None:
        return ""
    kind = uuid.partition("-")[0]
    if kind == "LVM":
        return f"LVM ({host.value(f'{device}/dm/name') or 'a logical volume'})"
    # A path of a multipath disk is a plain disk to GRUB; "part1-mpath-…" is its partition.
    return "" if "mpath" in uuid else f"the device mapper ({kind or 'unknown'})"


def _demand_grubs_view(host: Host, where: str) -> None:
    """What GRUB's own tool sees must agree."""
    answers = {}
    for target in ("fs", "abstraction"):
        done = host.run(["grub-probe", f"--target={target}", FOLDER], check=False, timeout=60)
        if done.rc != 0:
            why = (done.stderr.strip() or "no answer").splitlines()[-1]
            raise _refused(f"{where}, and grub-probe --target={target} says: {why}")
        answers[target] = done.stdout.split()
    if answers["abstraction"]:
        raise _refused(f"{where}: GRUB cannot write through {', '.join(answers['abstraction'])}")
    if not set(answers["fs"]) & _WRITTEN:
        raise _refused(
            f"{where}: GRUB does not write on {' '.join(answers['fs']) or 'an unknown file system'}"
        )
