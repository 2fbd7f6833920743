# SPDX-License-Identifier: Apache-2.0
"""The gpu_memory layer: GTT limit, the service's user and its groups, udev rules."""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import activation, memory, paths, service_user
from .activation import Due, marked
from .change import Call, Change, Command, Remove, WriteFile
from .host import Host
from .service_user import GROUPS

LAYER = "gpu_memory"
# The home that Debian's lemonade-server gives this user as well (its sysusers.d file).
USER_HOME = "/var/lib/lemonade"
UDEV_CONTROL = "/run/udev/control"

# systemd's own rules say the same today; stated here because a box without them (or with AMD's
# 0666 rule removed) would give the service no GPU.
UDEV_RULES = """\
# Managed by lemonade-deploy (role gpu_memory): the GPU's compute devices belong to group render.
SUBSYSTEM=="kfd", KERNEL=="kfd", GROUP="render", MODE="0660"
SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="render", MODE="0660"
"""


@dataclass(frozen=True)
class MemoryWish:
    """``pages``: GTT limit in pages of 4 KiB, None to leave it alone. ``module``: ttm or amdttm."""

    pages: int | None
    module: str
    user: str


@dataclass(frozen=True)
class MemoryState:
    """``active``: the loaded module's limit, None where it is not loaded; texts are None if absent.

    ``outranked``: another place wins; ``prepared``: the initramfs was rebuilt, only the boot is due.
    """

    modprobe: str | None
    udev: str | None
    user_exists: bool
    missing_groups: tuple[str, ...]
    undefined_groups: tuple[str, ...]
    active: int | None
    outranked: bool = False
    prepared: bool = False


def read(host: Host, wish: MemoryWish) -> MemoryState:
    """Read the state."""
    marker = activation.load(host)
    access = service_user.read_access(host, wish.user)
    defined = set(re.findall(r"^([^:\n]+):", host.read("/etc/group") or "", re.MULTILINE))
    return MemoryState(
        modprobe=host.read(paths.GTT_MODPROBE),
        udev=host.read(paths.UDEV_RULES),
        user_exists=access.exists,
        missing_groups=access.missing_groups if access.exists else GROUPS,
        undefined_groups=tuple(name for name in GROUPS if name not in defined),
        active=memory.active_pages(host, wish.module),
        prepared=bool(marker.reboot) and not marker.initramfs,
        outranked=wish.pages is not None and memory.outranked(host, wish.module, wish.pages),
    )


def due(state: MemoryState, wish: MemoryWish) -> Due:
    """What the plan needs at boot."""
    wanted = None if wish.pages is None else memory.modprobe_file(wish.module, wish.pages)
    reasons = []
    # Where another place wins, a boot brings nothing: the proof then names that place.
    if wish.pages is not None and state.active != wish.pages and not state.outranked:
        now = f"is {state.active}" if state.active is not None else "has no value yet"
        reasons.append(f"{wish.module}.pages_limit {now}, {wish.pages} is wanted")
    # A file that is right and a limit that is not: the initramfs holds something older.
    stale = bool(reasons) and not state.prepared
    return Due(initramfs=state.modprobe != wanted or stale, reboot=tuple(reasons))


def plan(state: MemoryState, wish: MemoryWish) -> list[Change]:
    """Pure: options file, user, groups, udev rules."""
    changes = _options(state, wish)
    if state.udev != UDEV_RULES:
        operations = (WriteFile(paths.UDEV_RULES, UDEV_RULES), Call(reload_udev))
        changes.append(
            Change(LAYER, "udev rules", "write", paths.UDEV_RULES, state.udev, UDEV_RULES, operations)
        )
    changes += _user(state, wish)
    return marked(changes, due(state, wish))


def _options(state: MemoryState, wish: MemoryWish) -> list[Change]:
    name = f"modprobe options {wish.module}"
    if wish.pages is None:
        if state.modprobe is None:
            return []
        operations = (Remove(paths.GTT_MODPROBE),)
        return [Change(LAYER, name, "remove", paths.GTT_MODPROBE, state.modprobe, "", operations)]
    text = memory.modprobe_file(wish.module, wish.pages)
    if state.modprobe == text:
        return []
    detail = f"pages_limit = {wish.pages} ({wish.pages / memory.PAGES_PER_GIB:g} GiB)"
    return [
        Change(LAYER, name, "write", detail, state.modprobe, text, (WriteFile(paths.GTT_MODPROBE, text),))
    ]


def _user(state: MemoryState, wish: MemoryWish) -> list[Change]:
    changes = []
    if not state.user_exists:
        argv = ("useradd", "--system", "--user-group", "--home-dir", USER_HOME)
        command = Command((*argv, "--no-create-home", "--shell", "/usr/sbin/nologin", wish.user))
        changes.append(Change(LAYER, f"user {wish.user}", "create", USER_HOME, operations=(command,)))
    if state.missing_groups:
        operations = [Command(("groupadd", "--system", name)) for name in state.undefined_groups]
        operations.append(
            Command(("usermod", "--append", "--groups", ",".join(state.missing_groups), wish.user))
        )
        detail = ", ".join(state.missing_groups)
        changes.append(Change(LAYER, f"groups of {wish.user}", "add", detail, operations=tuple(operations)))
    return changes


def reload_udev(host: Host) -> None:
    """Have a running udev read the rules and apply them to the devices that are there."""
    if not host.exists(UDEV_CONTROL):
        return  # no udev runs (container); the rules count from the next boot
    host.run(["udevadm", "control", "--reload"])
    host.run(["udevadm", "trigger", "--subsystem-match=kfd", "--subsystem-match=drm"])
