# SPDX-License-Identifier: Apache-2.0
"""What watches over a trial boot on the host itself: units that only a trial boot makes work.

The timer covers a kernel that boots but is never confirmed (no network, no ssh, a controller that
went away). It starts with sysinit.target and depends on nothing, so that a boot that ends in the
emergency shell is covered as well. What decides is the kernel's own command line, read as a file:
``ConditionKernelCommandLine=`` reads PID 1's arguments in a container.
"""

from __future__ import annotations

import os

from . import paths, trial_menu
from .host import Host

TIMER = "lemonade-deploy-trial.timer"
SERVICE = "lemonade-deploy-trial.service"
SEEN = "lemonade-deploy-trial-seen.service"
FOLDER = "/etc/systemd/system"
# Notes of the trial boot, each begins with its boot id.
SEEN_NOTE = paths.STATE_DIR + "/trial-seen"  # PID 1 got as far as the local file systems
EXPIRED_NOTE = paths.STATE_DIR + "/trial-expired"  # nobody confirmed in time
# Longer than systemd waits for a service that does not stop (90 s, twice).
FORCE_SECONDS = 300

_HEAD = (
    "# SPDX-License-Identifier: Apache-2.0\n# Managed by lemonade-deploy: only while a kernel is on trial.\n"
)
_ONLY_TRIAL = f"ExecCondition=/bin/grep -q {trial_menu.MARK}= {trial_menu.CMDLINE}\n"
_NOTE = "/bin/sh -c 'cat /proc/sys/kernel/random/boot_id /proc/sys/kernel/osrelease > {0} && sync {0}'\n"


def timer(seconds: int) -> str:
    """The unit that waits *seconds* after the boot for a confirmation."""
    return (
        f"{_HEAD}[Unit]\nDescription=Back to the old kernel unless the new one is confirmed in time\n"
        f"DefaultDependencies=no\nConflicts=shutdown.target\nBefore=shutdown.target\n"
        f"ConditionPathExists=!{paths.TRIAL_CONFIRMED}\n\n"
        f"[Timer]\nOnBootSec={seconds}s\nAccuracySec=1s\nUnit={SERVICE}\n\n"
        "[Install]\nWantedBy=sysinit.target\n"
    )


def service() -> str:
    """The unit that reboots a trial that nobody confirmed; the next boot takes GRUB's saved entry.

    It does not end with the shutdown that it begins: what hangs there is cut off after FORCE_SECONDS. (A
    driver that hangs the kernel itself at its very end is the hardware watchdog's.)
    """
    return (
        f"{_HEAD}[Unit]\nDescription=Reboot into the old kernel: the new one was not confirmed\n"
        f"DefaultDependencies=no\n"
        f"ConditionPathExists=!{paths.TRIAL_CONFIRMED}\n\n"
        f"[Service]\nType=oneshot\nTimeoutStartSec=infinity\n{_ONLY_TRIAL}"
        f"ExecStartPre=-{_NOTE.format(EXPIRED_NOTE)}ExecStart=-/bin/systemctl --no-block reboot\n"
        f"ExecStart=/bin/sleep {FORCE_SECONDS}\nExecStart=/bin/systemctl --force --force reboot\n"
    )


def seen() -> str:
    """The unit that leaves a note that the trial kernel brought user space up."""
    return (
        f"{_HEAD}[Unit]\nDescription=Note that the kernel on trial brought the system up\n"
        f"DefaultDependencies=no\nConflicts=shutdown.target\nBefore=shutdown.target\n"
        f"After=local-fs.target\n\n[Service]\nType=oneshot\n{_ONLY_TRIAL}"
        f"ExecStart={_NOTE.format(SEEN_NOTE)}\n[Install]\nWantedBy=sysinit.target\n"
    )


def install(host: Host, seconds: int) -> None:
    """Put the units on the host, for the next boot. Raises CommandFailed, OSError."""
    for name, text in ((TIMER, timer(seconds)), (SERVICE, service()), (SEEN, seen())):
        host.write(f"{FOLDER}/{name}", text)
    forget(host)
    host.run(["systemctl", "daemon-reload"])
    host.run(["systemctl", "enable", "--quiet", TIMER, SEEN])


def forget(host: Host) -> None:
    """The notes of the last trial are of no use any more."""
    for note in (SEEN_NOTE, EXPIRED_NOTE):
        _unlink(host, note)


def confirm(host: Host) -> None:
    """The running trial stays: the timer is told first by its file, then stopped. Raises CommandFailed."""
    host.write(paths.TRIAL_CONFIRMED, "confirmed\n")
    if there := _there(host, TIMER, SERVICE):
        host.run(["systemctl", "stop", *there])


def remove(host: Host) -> None:
    """Take the units away, where they are. Raises CommandFailed."""
    there = _there(host, TIMER, SEEN, SERVICE)
    if not there:
        return
    if enabled := [name for name in there if name != SERVICE]:
        host.run(["systemctl", "disable", "--quiet", "--now", *enabled])
    for name in there:
        _unlink(host, f"{FOLDER}/{name}")
    host.run(["systemctl", "daemon-reload"])


def _there(host: Host, *names: str) -> list[str]:
    """Those that are on the disk: systemctl fails on any other, and a pulled plug may leave only some."""
    return [name for name in names if host.exists(f"{FOLDER}/{name}")]


def _unlink(host: Host, path: str) -> None:
    if host.exists(path):
        os.unlink(host.path(path))
