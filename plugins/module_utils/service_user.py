# SPDX-License-Identifier: Apache-2.0
"""Whether the service's user can open the GPU: groups, and access(2) asked as that user."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Sequence
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
    ``asked``: access(2) said so as that user (access lists count); else the mode bits did.
    """

    user: str
    exists: bool
    missing_groups: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    asked: bool = False


def _fields(text: str | None) -> list[list[str]]:
    return [line.split(":") for line in (text or "").splitlines() if line.count(":") >= 3]


def _ids(host: Host, user: str) -> tuple[int, int] | None:
    if host.root == "/":  # users of a directory service, and of systemd, are in no file
        try:
            known = pwd.getpwnam(user)
        except KeyError:
            return None
        return known.pw_uid, known.pw_gid
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


def denied(uid: int, gid: int, groups: Sequence[int], paths: Sequence[str]) -> list[str] | None:
    """Those of *paths* that access(2) does not let a user read and write, asked in a child that is the user.

    None where this process may not become another user, or the child could not.
    """
    if os.geteuid() != 0:
        return None
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups(list(groups))
            os.setgid(gid)
            os.setuid(uid)
            shut = [
                str(number) for number, path in enumerate(paths) if not os.access(path, os.R_OK | os.W_OK)
            ]
            os.write(writer, " ".join(shut).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as stream:
        numbers = stream.read().split()
    _pid, status = os.waitpid(child, 0)
    return [paths[int(number)] for number in numbers] if status == 0 else None


def read_access(host: Host, user: str) -> Access:
    """What *user* may do with the GPU's devices."""
    ids = _ids(host, user)
    if ids is None:
        return Access(user, False)
    groups = _groups(host, user, ids[1])
    gids = {*groups.values(), ids[1]}
    missing = tuple(name for name in GROUPS if name not in groups)
    there = devices(host)
    if host.root == "/" and there:
        told = denied(*ids, os.getgrouplist(user, ids[1]), there)
        if told is not None:
            return Access(user, True, missing, tuple(told), asked=True)
    closed = [device for device in there if not _may_open(host.path(device), ids[0], gids)]
    return Access(user, True, missing, tuple(closed))
