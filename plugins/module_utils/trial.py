# SPDX-License-Identifier: Apache-2.0
"""A kernel is tried: booted once, and the old one comes back by itself unless the new one is confirmed.

pin (before any package is unpacked) → installation → arm (the last thing before the reboot) → the
boot → confirm and promote, or nothing: then GRUB's saved entry, the old kernel, is what boots next.
"""

from __future__ import annotations

import os

from . import grub, grub_config, grub_script, paths, trial_menu, trial_units
from .host import Host
from .refusal import Refused
from .trial_menu import Entries

MIN_CONFIRM_SECONDS = 30  # nothing boots and is proven in less; systemd drops a timer of a negative time
MAX_CONFIRM_SECONDS = 86_400  # of 14 digits and more systemd drops it, too; a day is no trial any more
WATCHDOG = "/sys/class/watchdog/watchdog0"
WATCHDOG_DEVICE = "/dev/watchdog0"
# Seconds without a sign of life of PID 1 until the hardware resets the box; most drivers take 60.
WATCHDOG_SECONDS = 60
# What a pin writes: all of it is put back where it fails.
_FILES = (grub.GRUB_CFG, grub.GRUBENV, paths.GRUB_SNIPPET, trial_menu.SCRIPT)
SOFTDOG = "Software Watchdog"  # freezes with the kernel that it is to watch


def pinned(state: grub.Grub | None, entries: Entries | None, running: str) -> bool:
    """Whether every boot but a one-shot one takes the running kernel, and whatever fails falls back to it."""
    return (
        state is not None
        and entries is not None
        and state.follows_saved
        and not state.unknown
        and not state.waits
        and state.default_release() == running
        and _good(state) == running
        and entries.good == running
        and 0 in state.fallback
    )


def _good(state: grub.Grub) -> str:
    first = state.menu[0] if state.menu else None
    return first.release if first is not None and first.id == trial_menu.GOOD else ""


def pin(host: Host, running: str, release: str = "") -> None:
    """The running kernel is what GRUB boots, whatever comes later; read back.

    *release* is the kernel that will be tried ("" for none): its entry appears as soon as it is installed.
    Where it fails, GRUB's files are as they were. Raises grub.EntryMissing, CommandFailed, OSError.
    """
    entries = Entries(running, trial=release, extra=_parameters(host, release) if release else "")
    with grub_config.undone(host, _FILES):
        host.write(paths.GRUB_SNIPPET, grub.snippet())
        trial_menu.write(host, entries)
        grub_config.regenerate(host)
        grub.set_default(host, running)
        _demand_pinned(host, running)


def _demand_pinned(host: Host, running: str) -> None:
    state = grub.read(host)
    if pinned(state, trial_menu.read(host), running):
        return
    told = (
        f"{grub.GRUB_CFG} was to begin with {running} and to fall back to it, and does not: "
        f"see {trial_menu.SCRIPT}, {paths.GRUB_SNIPPET}, what else is in /etc/default/grub.d, "
        f"and what sets `default` or `fallback` in /etc/grub.d or {grub_script.CUSTOM}"
    )
    if state is not None and state.waits:
        told += f"; {state.waits}"
    if state is not None and state.unknown:
        told += f"; not followed: {'; '.join(state.unknown)}"
    raise grub.EntryMissing(told)


def demand_time(confirm_seconds: int) -> None:
    """Refuse a time after which a trial would end before it began, or never. Raises Refused."""
    if not MIN_CONFIRM_SECONDS <= confirm_seconds <= MAX_CONFIRM_SECONDS:
        raise Refused(
            f"kernel_confirm_timeout is {confirm_seconds} s: a new kernel must be proven in that time",
            f"give it a number from {MIN_CONFIRM_SECONDS} to {MAX_CONFIRM_SECONDS} (900 is the default)",
        )


def arm(host: Host, release: str, confirm_seconds: int) -> None:
    """The next boot, and only that, takes *release* on trial.

    The one-shot entry comes last. Raises grub.EntryMissing, CommandFailed, OSError.
    """
    running = host.running_kernel()
    if not pinned(grub.read(host), trial_menu.read(host), running):
        pin(host, running, release)
    if not _ready(host, release):
        entries = trial_menu.read(host) or Entries(running)
        with grub_config.undone(host, _FILES):
            trial_menu.write(host, entries._replace(trial=release, extra=_parameters(host, release)))
            grub_config.regenerate(host)
            _demand_pinned(host, running)
            if not _ready(host, release):
                raise grub.EntryMissing(
                    f"{grub.GRUB_CFG} has no trial entry for kernel {release} with an initrd: "
                    f"see {trial_menu.SCRIPT} and whether update-grub finds that kernel"
                )
    trial_units.install(host, confirm_seconds)
    with grub_config.undone(host, [grub.GRUBENV]):
        grub.set_next(host, trial_menu.TRIAL, release)
    os.sync()


def _ready(host: Host, release: str) -> bool:
    state = grub.read(host)
    entry = state.entry(trial_menu.TRIAL) if state else None
    wanted = _parameters(host, release).split()
    return (
        entry is not None
        and entry.release == release
        and entry.initrd
        and set(wanted) <= set(entry.arguments)
    )


def _parameters(host: Host, release: str) -> str:
    return trial_menu.trial_parameters(release, WATCHDOG_SECONDS if hardware_watchdog(host) else 0)


def hardware_watchdog(host: Host) -> str:
    """Identity of a hardware watchdog that nobody else has taken, or "" where there is none."""
    identity = host.value(f"{WATCHDOG}/identity") or ""
    if not host.exists(WATCHDOG_DEVICE) or identity in ("", SOFTDOG):
        return ""
    # One program only may hold it; where the box's own watchdog daemon does, that is the cover.
    return "" if host.value(f"{WATCHDOG}/state") == "active" else identity


def promote(host: Host, release: str) -> None:
    """The running, proven *release* becomes the default and the known-good kernel; the trial is over.

    saved_entry is what decides: a plug pulled after it boots the new kernel. Raises
    grub.EntryMissing, CommandFailed, OSError.
    """
    trial_units.confirm(host)
    grub.set_default(host, release)
    state = grub.read(host)
    if state is None or state.default_release() != release:
        raise grub.EntryMissing(
            f"{grub.GRUBENV} names {release}, but {grub.GRUB_CFG} boots {state and state.default}: "
            f"see what sets `default` in /etc/grub.d or {grub_script.CUSTOM}"
        )
    entries = trial_menu.read(host)
    if entries is not None and entries != (wanted := promoted(entries, release)):
        with grub_config.undone(host, (grub.GRUB_CFG, trial_menu.SCRIPT)):
            trial_menu.write(host, wanted)
            grub_config.regenerate(host)
    trial_units.remove(host)
    trial_units.forget(host)


def promoted(entries: Entries, release: str) -> Entries:
    """Our entries after *release* was proven: first, with the known-good one of before behind it."""
    previous = entries.previous if entries.good == release else entries.good
    return Entries(release, previous)


def give_up(host: Host) -> None:
    """No one-shot entry and no units stay; the old kernel is the default already. Raises CommandFailed."""
    state = grub.read(host)
    if state is not None and state.env.get("next_entry"):
        grub.clear_next(host)
    trial_units.remove(host)
