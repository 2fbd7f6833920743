# SPDX-License-Identifier: Apache-2.0
"""Whether the service's user can open the GPU: groups as files say, devices as their modes say."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from .host import Host

# vLLM's amdsmi needs video besides render (lemonade-sdk/vllm-rocm scripts/qualify/README.md:
# "the #1 correctness requirement").
GROUPS = ("render", "video")
KFD = "/dev/kfd"
DRI = "/dev/dri"


class Access(NamedTuple):
    """``exists``: the user is in /etc/passwd. ``missing_groups``: of render and video.

    ``closed``: GPU devices that are there and that the user cannot open for reading and writing.
    """

    user: str
    exists: bool
    missing_groups: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()


def _fields(text: str | None) -> list[list[str]]:
    return [line.split(":") for line in (text or "").splitlines() if line.count(":") >= 3]


def _ids(host: Host, user: str) -> tuple[int, int] | None:
    for fields in _fields(host.read("/etc/passwd")):
        if fields[0] == user and fields[2].isdigit() and fields[3].isdigit():
            return int(fields[2]), int(fields[3])
    return None


def _groups(host: Host, user: str, primary: int) -> dict[str, int]:
    """Names and ids of the user's groups."""
    member = {}
    for name, _password, gid, members, *_rest in _fields(host.read("/etc/group")):
        if gid.isdigit() and (user in members.split(",") or int(gid) == primary):
            member[name] = int(gid)
    return member


def _may_open(real: str, uid: int, gids: set[int]) -> bool:
    """Whether mode bits let the user read and write (access lists are not looked at)."""
    try:
        status = os.stat(real)
    except OSError:
        return False
    both = status.st_mode
    if status.st_uid == uid:
        return both & stat.S_IRUSR != 0 and both & stat.S_IWUSR != 0
    if status.st_gid in gids:
        return both & stat.S_IRGRP != 0 and both & stat.S_IWGRP != 0
    return both & stat.S_IROTH != 0 and both & stat.S_IWOTH != 0


def devices(host: Host) -> list[str]:
    """GPU devices that are there: /dev/kfd and the render nodes."""
    nodes = [f"{DRI}/{name}" for name in host.listdir(DRI) if name.startswith("renderD")]
    return ([KFD] if host.exists(KFD) else []) + nodes


def read_access(host: Host, user: str) -> Access:
    """What *user* may do with the GPU's devices."""
    ids = _ids(host, user)
    if ids is None:
        return Access(user, False)
    groups = _groups(host, user, ids[1])
    gids = {*groups.values(), ids[1]}
    closed = [device for device in devices(host) if not _may_open(host.path(device), ids[0], gids)]
    missing = [name for name in GROUPS if name not in groups]
    return Access(user, True, tuple(missing), tuple(closed))
