# SPDX-License-Identifier: Apache-2.0
"""The hub's cache on a host: what of a model is there, and how it gets there from a hub or a folder.

Layout (huggingface_hub): ``models--ORG--NAME/{refs/main, snapshots/COMMIT/…}``. lemond puts plain files
into the snapshot, and so do we. Files are collected in a folder beside the snapshots and moved there when
all are whole: a half-downloaded model never looks like a model, and a stopped download goes on.
The cache belongs to the service's user, and so writes are his: root must not follow what he may have linked.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from .fetch import READ
from .host import Host
from .hub import File, Repository
from .lemond_service import HF_HOME, USER
from .refusal import Refused

PARTIAL = ".lemonade-deploy"
WEIGHTS = (".safetensors", ".bin", ".gguf")
_INDEX = ".safetensors.index.json"


class Bytes(Protocol):
    """A file that can be read from any offset."""

    def chunks(self, start: int = 0) -> Generator[bytes, None, None]:
        """The bytes from *start* on."""


class Source(Protocol):
    """Where models come from: a hub or a folder."""

    def repository(self, name: str) -> Repository:
        """The repository *name*. Raises Refused."""

    def check_access(self, repository: Repository) -> None:
        """Raises Refused where its files are not for us."""

    def download(self, repository: Repository, file: File) -> Bytes:
        """One of its files."""

    def text(self, repository: Repository, path: str) -> str | None:
        """A small file, None where there is none."""


class OutOfTime(Exception):
    """The time for this part of a download is over; the next one goes on."""

    def __init__(self, done: int, total: int, path: str) -> None:
        self.done, self.total, self.path = done, total, path
        super().__init__(path)


def place(checkpoint: str) -> str:
    """The cache folder of a checkpoint (``org/name``, a part after a colon does not count)."""
    return f"{HF_HOME}/hub/models--{checkpoint.partition(':')[0].replace('/', '--')}"


def complete(host: Host, checkpoint: str) -> bool:
    """Whether a snapshot holds weights, and every part that its index names."""
    if not checkpoint:
        return False
    snapshots = place(checkpoint) + "/snapshots"
    return any(_whole(host, f"{snapshots}/{commit}") for commit in host.listdir(snapshots))


def _whole(host: Host, folder: str) -> bool:
    names = set(host.listdir(folder))
    if not any(name.endswith(WEIGHTS) for name in names):
        return False
    for index in (name for name in names if name.endswith(_INDEX)):
        try:
            parts = set(json.loads(host.read(f"{folder}/{index}") or "{}").get("weight_map", {}).values())
        except (ValueError, AttributeError, TypeError):  # no JSON, or not of an index's form
            return False
        if not parts <= names:
            return False
    return True


def check_weights(repository: Repository) -> None:
    """Refused where no download of it could ever be complete."""
    if not any(file.path.endswith(WEIGHTS) and "/" not in file.path for file in repository.files):
        raise Refused(
            f"{repository.name} holds no weights ({', '.join(WEIGHTS)}) that the engine could load.",
            "Check the checkpoint's name in models_wanted, or complete its folder.",
        )


def snapshot(host: Host, checkpoint: str) -> str | None:
    """The folder of the snapshot that counts, None where there is none."""
    base = place(checkpoint)
    commit = host.value(f"{base}/refs/main")
    if commit and host.is_dir(f"{base}/snapshots/{commit}"):
        return f"{base}/snapshots/{commit}"
    found = host.listdir(f"{base}/snapshots")
    return f"{base}/snapshots/{found[0]}" if found else None


def missing_bytes(host: Host, repository: Repository) -> int:
    """Bytes that a download has yet to bring."""
    partial = f"{place(repository.name)}/{PARTIAL}/{repository.commit}"
    return sum(max(0, file.size - _size(host, f"{partial}/{file.path}")) for file in repository.files)


def _size(host: Host, path: str) -> int:
    """Bytes of a file, or of what there is of it."""
    for candidate in (path, path + PARTIAL):
        try:
            return os.stat(host.path(candidate)).st_size
        except OSError:
            continue
    return 0


@dataclass(frozen=True)
class Limits:
    """``deadline`` is monotonic, in seconds: when this part ends (None: never)."""

    deadline: float | None = None

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self.deadline is not None and time.monotonic() > self.deadline


@contextmanager
def service_identity() -> Iterator[None]:
    """Act as the service's user for a while; where there is none, or we are not root, as we are."""
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        user = None
    if user is None or os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def fetch(host: Host, source: Source, repository: Repository, limits: Limits | None = None) -> None:
    """Bring a repository into the cache. Raises OutOfTime (call again), FetchError, Refused."""
    limits = limits or Limits()
    check_weights(repository)
    begun = f"{place(repository.name)}/{PARTIAL}"
    for commit in host.listdir(begun):
        if commit != repository.commit:  # of an earlier state of the repository: nothing goes on with it
            shutil.rmtree(host.path(f"{begun}/{commit}"))
    partial = f"{begun}/{repository.commit}"
    for file in repository.files:
        target = host.path(f"{partial}/{file.path}")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            _one(host, source, repository, file, target, limits)
    if not _whole(host, partial):
        raise Refused(
            f"{repository.name} is not complete: its {_INDEX[1:]} names parts that are not there.",
            "Take another checkpoint, or complete its folder, then run the same command again.",
        )
    settle(host, repository.name, repository.commit, partial)


def _one(host: Host, source: Source, repository: Repository, file: File, target: str, limits: Limits) -> None:
    unfinished = target + PARTIAL
    start = os.path.getsize(unfinished) if os.path.exists(unfinished) else 0
    if start > file.size:
        os.unlink(unfinished)
        start = 0
    with open(unfinished, "ab") as stream:
        for chunk in source.download(repository, file).chunks(start) if start < file.size else ():
            stream.write(chunk)
            if limits.over:
                stream.flush()
                left = missing_bytes(host, repository)
                raise OutOfTime(repository.size - left, repository.size, file.path)
    wrong = differs(unfinished, file)
    if wrong:
        os.unlink(unfinished)
        raise Refused(
            f"{repository.name}: {file.path} {wrong}.", "Run the same command again; it is fetched anew."
        )
    os.replace(unfinished, target)


def differs(path: str, file: File) -> str:
    """What is wrong with a file that was fetched, "" for nothing."""
    size = os.path.getsize(path)
    if size != file.size:
        return f"has {size} bytes, the hub says {file.size}"
    if not file.digest:
        return ""
    # Git's id of a file: SHA-1 of a short head and the content. It names content here, it proves no origin.
    hasher = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with open(path, "rb") as stream:
        while chunk := stream.read(READ):
            hasher.update(chunk)
    return "" if hasher.hexdigest() == file.digest else "has another digest than the hub says"


def settle(host: Host, checkpoint: str, commit: str, folder: str) -> None:
    """Move the whole files of *folder* into the snapshot; the reference to it comes last."""
    base = place(checkpoint)
    target = host.path(f"{base}/snapshots/{commit}")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if not os.path.isdir(target):
        os.rename(host.path(folder), target)
    else:  # begun by somebody else: ours are whole
        for below, _folders, names in os.walk(host.path(folder)):
            inner = os.path.join(target, os.path.relpath(below, host.path(folder)))
            os.makedirs(inner, exist_ok=True)
            for name in names:
                os.replace(os.path.join(below, name), os.path.join(inner, name))
    shutil.rmtree(host.path(f"{base}/{PARTIAL}"))
    host.write(f"{base}/refs/main", commit)
