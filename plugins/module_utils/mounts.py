# SPDX-License-Identifier: Apache-2.0
"""Which file system holds a path, and which block devices and drivers are beneath it (procfs, sysfs)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from .host import Host

MOUNTINFO = "/proc/self/mountinfo"
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of mountinfo (proc(5)); ``device`` is major:minor, 0:N for what is on no block device."""

    point: str
    device: str
    type: str
    source: str
    options: tuple[str, ...]
    super_options: tuple[str, ...] = ()  # the file system's own: "ro" after an error, whatever the mount says


def _text(word: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), word)


def parse(text: str) -> list[Mount]:
    """All mounts, in their order."""
    mounts = []
    for line in text.splitlines():
        front, dash, back = line.partition(" - ")
        first, second = front.split(), back.split()
        if dash and len(first) >= 6 and len(second) >= 2:
            mounts.append(
                Mount(
                    _text(first[4]),
                    first[2],
                    second[0],
                    _text(second[1]),
                    tuple(first[5].split(",")),
                    tuple(",".join(second[2:]).split(",")),
                )
            )
    return mounts


def holding(host: Host, path: str) -> Mount | None:
    """The mount that *path* is on: the last one with the longest mount point."""
    best: Mount | None = None
    for mount in parse(host.read(MOUNTINFO) or ""):
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _resolved(host: Host, path: str) -> str | None:
    """A sysfs link's target as a path on the host."""
    real = os.path.realpath(host.path(path))
    return host.unroot(real) if os.path.exists(real) else None


def _node(host: Host, mount: Mount) -> str | None:
    found = _resolved(host, f"/sys/dev/block/{mount.device}")
    if found is None and mount.source.startswith("/dev/"):
        # btrfs and the like have a device number of their own: the source names the disk.
        target = host.readlink(mount.source) or mount.source
        found = _resolved(host, f"/sys/class/block/{os.path.basename(target)}")
    return found


def stack(host: Host, mount: Mount) -> list[str]:
    """sysfs folders of the block devices beneath a mount, top first; a partition's disk follows it."""
    node = _node(host, mount)
    return list(_beneath(host, node)) if node else []


def _beneath(host: Host, node: str) -> Iterator[str]:
    yield node
    if host.exists(f"{node}/partition"):
        yield from _beneath(host, os.path.dirname(node))
        return
    yield from _multipath(host, node)
    for name in host.listdir(f"{node}/slaves"):
        below = _resolved(host, f"{node}/slaves/{name}")
        if below:
            yield from _beneath(host, below)


def _multipath(host: Host, node: str) -> Iterator[str]:
    """The controllers of an NVMe disk with native multipath: links beside it in its virtual subsystem."""
    folder = os.path.dirname(node)
    if not os.path.dirname(folder).endswith("/nvme-subsystem"):
        return
    for name in host.listdir(folder):
        if re.fullmatch(r"nvme\d+", name):
            controller = _resolved(host, f"{folder}/{name}")
            if controller:
                yield controller


def drivers_above(host: Host, node: str) -> list[str]:
    """Kernel modules that drive a device and everything on the way to it (``driver/module`` in sysfs).

    A part without such a link is built into the running kernel, or needs no driver.
    """
    found: list[str] = []
    while node.startswith("/sys/devices/") and node != "/sys/devices":
        module = _resolved(host, f"{node}/driver/module")
        name = os.path.basename(module) if module else ""
        if name and name not in found:
            found.append(name)
        node = os.path.dirname(node)
    return found
