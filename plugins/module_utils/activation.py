# SPDX-License-Identifier: Apache-2.0
"""What must take effect at the next boot, for all layers, and the marker of it on disk.

Every layer merges what it needs into the marker before its first destructive operation; the role
activate works it off. A pulled plug therefore leaves a host that the next run brings to the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import paths
from .change import Call, Change
from .host import Host

BOOT_ID = "/proc/sys/kernel/random/boot_id"
LAYER = "activate"
# A kernel that did not come up twice is not tried a third time.
MAX_TRIES = 2


@dataclass(frozen=True)
class Due:
    """``kernel``: release to be booted once and made the default; ``tries``: boots begun for it.

    ``tried`` is the boot in which the last try was begun: asking again in it is no further try.
    ``boot_id`` is the boot in which the marker was last written: reasons for a reboot count only
    in that boot, as any later one has made up for them.
    """

    initramfs: bool = False
    reboot: tuple[str, ...] = ()
    kernel: str | None = None
    tries: int = 0
    tried: str = ""
    boot_id: str = ""

    def __bool__(self) -> bool:
        return self.initramfs or bool(self.reboot) or self.kernel is not None

    def public(self) -> dict[str, Any]:
        """The ``activation`` result of a module."""
        return {"initramfs": self.initramfs, "reboot": list(self.reboot), "kernel": self.kernel}


def parse(value: Any) -> Due:
    """A Due from a module's ``activation`` or from the marker; raises ValueError for other shapes."""
    if not isinstance(value, dict) or not isinstance(value.get("reboot", []), list):
        raise ValueError(f"no activation record: {value!r}")
    kernel = value.get("kernel")
    try:
        tries = int(value.get("tries", 0))
    except (TypeError, OverflowError):  # null, a list, 1e400
        raise ValueError(f"no activation record: {value!r}") from None
    return Due(
        bool(value.get("initramfs", False)),
        tuple(str(reason) for reason in value.get("reboot", [])),
        str(kernel) if kernel else None,
        tries,
        str(value.get("tried", "")),
        str(value.get("boot_id", "")),
    )


def union(dues: Iterable[Due]) -> Due:
    """All of *dues* together; a later kernel replaces an earlier one and its count of tries."""
    together = Due()
    for due in dues:
        reasons = (*together.reboot, *(reason for reason in due.reboot if reason not in together.reboot))
        same_kernel = due.kernel is None or due.kernel == together.kernel
        together = Due(
            together.initramfs or due.initramfs,
            reasons,
            due.kernel or together.kernel,
            max(together.tries, due.tries) if same_kernel else due.tries,
            due.tried or together.tried if same_kernel else due.tried,
            due.boot_id or together.boot_id,
        )
    return together


def kernel_reason(wanted: str, running: str) -> str:
    """Why a boot is needed where another kernel than the running one is wanted."""
    return f"kernel {wanted} is wanted, {running} runs"


def only_of(due: Due, wanted: str, running: str) -> Due:
    """*due* without what an earlier run wanted of another kernel than *wanted*: its tries, and its boot."""
    if due.kernel in (None, wanted):
        return due
    reasons = tuple(text for text in due.reboot if text != kernel_reason(str(due.kernel), running))
    return replace(due, kernel=None, tries=0, tried="", reboot=reasons)


def boot_id(host: Host) -> str:
    """Id of the running boot."""
    return host.value(BOOT_ID) or ""


def load(host: Host) -> Due:
    """The marker; an unreadable one means that everything must be made up for."""
    text = host.read(paths.ACTIVATION_DUE)
    if text is None:
        return Due()
    try:
        due = parse(json.loads(text))
    except ValueError:
        # Half a file cannot come from our atomic write; whatever it was, a rebuild makes it good.
        return Due(initramfs=True)
    return due if due.boot_id == boot_id(host) else replace(due, reboot=())


def read_due(host: Host) -> list[str]:
    """Why a boot, or at least a rebuild, is due on this host, in words; empty where nothing is."""
    due = load(host)
    reasons = list(due.reboot)
    if due.initramfs:
        reasons.append("the initramfs images are to be rebuilt")
    if due.kernel is not None:
        reasons.append(f"kernel {due.kernel} is to be booted and proven")
    return reasons


def save(host: Host, due: Due) -> None:
    """Write the marker and bring it to the disk."""
    record = {**due.public(), "tries": due.tries, "tried": due.tried, "boot_id": boot_id(host)}
    host.write(paths.ACTIVATION_DUE, json.dumps(record, indent=1) + "\n")
    folder = os.open(host.path(os.path.dirname(paths.ACTIVATION_DUE)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def merge(host: Host, due: Due) -> None:
    """Add *due* to the marker."""
    save(host, union([load(host), due]))


def clear(host: Host) -> None:
    """Everything has taken effect."""
    if host.exists(paths.ACTIVATION_DUE):
        os.unlink(host.path(paths.ACTIVATION_DUE))


def marked(changes: Sequence[Change], due: Due) -> list[Change]:
    """*changes* with the marker's merge in front of the first one's operations."""
    if not changes or not due:
        return list(changes)
    mark = Call(lambda host: merge(host, due))
    return [replace(changes[0], operations=(mark, *changes[0].operations)), *changes[1:]]


def plan(due: Due, *, reboot: Sequence[str], default_release: str) -> list[Change]:
    """What activate will do: pure, the same for a run and for check mode.

    ``reboot``: all reasons for a reboot; ``default_release``: the kernel GRUB boots by default.
    """
    changes = []
    if due.initramfs:
        changes.append(Change(LAYER, "initramfs", "rebuild", "once for every installed kernel"))
    if reboot:
        changes.append(Change(LAYER, "host", "reboot", "; ".join(reboot)))
    if due.kernel is not None and (reboot or default_release != due.kernel):
        changes.append(Change(LAYER, "grub default", "promote", f"{due.kernel}, after it proved itself"))
    return changes
