# SPDX-License-Identifier: Apache-2.0
"""Why a trial ended on the old kernel, by what it left on the disk and in the hardware.

Reliable in every case is the marker that was written and synced before the reboot (target, tries, boot
id). All else is there or not: a kernel that panicked early leaves nothing but, perhaps, pstore.
"""

from __future__ import annotations

import os
import re

from . import grub, initramfs, paths, trial_units
from .activation import MAX_TRIES, Due, boot_id
from .host import Host

PSTORE = "/var/lib/systemd/pstore"  # where systemd-pstore puts what firmware kept of a panic
_CARD_RESET = 0x20  # WDIOF_CARDRESET (linux/watchdog.h): the watchdog caused the last boot
_LINES = 5  # of a journal, for people
_STAMP = re.compile(r"^(?:<\d+>)?(?:\[[ \d.]+\] *)?")


def gather(host: Host, due: Due) -> list[str]:
    """What is known of the last try of ``due.kernel``, in words; the first line always stands."""
    release = due.kernel or ""
    known = [f"try {due.tries} of {MAX_TRIES}, begun in boot {due.tried or '?'}"]
    if due.tried == boot_id(host):
        return [*known, "this is still that boot: the host was not rebooted"]
    untaken = _untaken(host)
    told = _notes(host) + _journal(host) + _pstore(host) + _watchdog(host)
    if untaken:
        told = [untaken]
    elif not host.exists(f"/boot/vmlinuz-{release}"):
        told.insert(0, f"/boot/vmlinuz-{release} is not there, so that GRUB could not load it")
    elif not host.exists(initramfs.image(release)):
        told.insert(0, f"{initramfs.image(release)} is not there, so that GRUB could not load it")
    elif not told:
        told = [
            "GRUB took the entry, and nothing of that boot is left: GRUB could not load the kernel, "
            "or it panicked or hung before its journal began (its console says more)"
        ]
    return [*known, *told]


def _untaken(host: Host) -> str:
    state = grub.read(host)
    spec = state.env.get("next_entry", "") if state else ""
    if not spec:
        return ""
    return f"GRUB never took the one-shot entry: {grub.GRUBENV} still has next_entry={spec}"


def _note(host: Host, path: str) -> list[str]:
    return (host.read(path) or "").split()


def _notes(host: Host) -> list[str]:
    seen, expired = _note(host, trial_units.SEEN_NOTE), _note(host, trial_units.EXPIRED_NOTE)
    if expired:
        return [
            f"it came up (boot {expired[0]}), but nobody confirmed it in time, so the host rebooted itself: "
            "no network, no ssh, or this controller was not there"
        ]
    if seen:
        return [f"it came up as far as the local file systems (boot {seen[0]}), but was not confirmed"]
    return []


def _journal(host: Host) -> list[str]:
    """The last errors of the trial's journal, where its boot id is known and journald kept it."""
    notes = _note(host, trial_units.EXPIRED_NOTE) or _note(host, trial_units.SEEN_NOTE)
    if not notes:
        return []
    boot = notes[0].replace("-", "")
    argv = ["journalctl", "--no-pager", "-q", "-b", boot, "-p", "err", "-n", str(_LINES), "-o", "cat"]
    done = host.run(argv, check=False, timeout=60)
    lines = [line.strip()[:160] for line in done.stdout.splitlines() if line.strip()]
    if done.rc != 0 or not lines:
        return []
    return [f"its journal's last errors (journalctl -b {boot}): {' | '.join(lines)}"]


def _pstore(host: Host) -> list[str]:
    """The panic that the firmware kept, where it is younger than the marker."""
    try:
        begun = os.stat(host.path(paths.ACTIVATION_DUE)).st_mtime
    except FileNotFoundError:
        return []
    found = []
    for path in [*host.glob(f"{PSTORE}/*/dmesg.txt"), *host.glob(f"{PSTORE}/*/*/dmesg.txt")]:
        if os.stat(host.path(path)).st_mtime < begun:
            continue
        lines = (host.read(path) or "").splitlines()
        panic = next((line for line in lines if "Kernel panic" in line), lines[-1] if lines else "")
        found.append(f"the firmware kept its last words in {path}: {_STAMP.sub('', panic).strip()}")
    return found[-1:]


def _watchdog(host: Host) -> list[str]:
    found = []
    for path in host.glob("/sys/class/watchdog/watchdog*/bootstatus"):
        status = host.value(path) or "0"
        if status.isdigit() and int(status) & _CARD_RESET:
            found.append(f"the hardware watchdog reset the box ({path} is {status})")
    return found
