# SPDX-License-Identifier: Apache-2.0
"""Models from a folder on the host (a disk that was carried there, a share): for hosts without any hub.

Two layouts are taken: ``FOLDER/ORG/NAME/`` with the repository's files, and a hub cache as another host
has it (``FOLDER/models--ORG--NAME/snapshots/COMMIT/``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from .fetch import READ
from .host import Host
from .hub import File, Repository, needed
from .refusal import Refused


@dataclass(frozen=True)
class Copy:
    """A file of the folder. ``mtime``: its time in ns when it was listed, None where it was not."""

    path: str
    mtime: int | None = None

    def chunks(self, start: int = 0) -> Generator[bytes, None, None]:
        """The bytes from *start* on. Raises Refused where the file is not the one that was listed."""
        with open(self.path, "rb") as stream:
            self._check(stream.fileno())
            stream.seek(start)
            while chunk := stream.read(READ):
                yield chunk
            self._check(stream.fileno())

    def _check(self, handle: int) -> None:
        if self.mtime not in (None, os.fstat(handle).st_mtime_ns):
            raise Refused(
                f"{self.path} was changed while it was copied.",
                "Wait until the folder is complete, then run the same command again; it is copied anew.",
            )


class Folder:
    """Models below *path* on the host. The service's user must be able to read them."""

    def __init__(self, host: Host, path: str) -> None:
        self._host = host
        self._times: dict[str, int] = {}  # ns, by real path
        self.path = path.rstrip("/") or "/"

    def repository(self, name: str) -> Repository:
        """The repository *name*. Raises Refused where the folder does not hold it."""
        base = self._base(name)
        real = self._host.path(base)
        try:
            found = dict(_walk(real, "", ())) if os.path.isdir(real) else {}
        except OSError as error:
            raise Refused(f"{base} cannot be read: {error}.", "Make it readable, or copy it anew.") from error
        if not found:
            raise Refused(
                f"{self.path} holds no model {name}.",
                f"Put its files into {self.path}/{name}, or a hub cache's models--… folder into {self.path}.",
            )
        files = needed([File(path, status.st_size if status else 0) for path, status in found.items()])
        lost = [file.path for file in files if found[file.path] is None]
        if lost:
            raise Refused(
                f"{base}: {', '.join(lost[:3])} {'is a link' if len(lost) == 1 else 'are links'} to nowhere.",
                "Copy the model with its files (`cp -rL`), or the whole models--… folder with its blobs.",
            )
        # Content can change while path and size stay: without the time, one half of a copy that goes on
        # would be of the old file.
        told = ""
        for path, status in found.items():
            if status:
                self._times[f"{real}/{path}"] = status.st_mtime_ns
                told += f"{path} {status.st_size} {status.st_mtime_ns}\n"
        commit = hashlib.sha1(told.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
        return Repository(name, commit, False, files)  # the commit is a name, as long as Git's

    def check_access(self, repository: Repository) -> None:
        """Nothing to ask for."""

    def download(self, repository: Repository, file: File) -> Copy:
        """One of its files."""
        path = f"{self._host.path(self._base(repository.name))}/{file.path}"
        return Copy(path, self._times.get(path))

    def text(self, repository: Repository, path: str) -> str | None:
        """A small file, None where there is none."""
        return self._host.read(f"{self._base(repository.name)}/{path}")

    def _base(self, name: str) -> str:
        cache = f"{self.path}/models--{name.replace('/', '--')}"
        commit = self._host.value(f"{cache}/refs/main")
        found = [commit] if commit else self._host.listdir(f"{cache}/snapshots")
        return f"{cache}/snapshots/{found[0]}" if found else f"{self.path}/{name}"


def _walk(root: str, below: str, above: tuple[str, ...]) -> Iterator[tuple[str, os.stat_result | None]]:
    """Files of a folder, None for a link to nowhere. Links are followed, hidden names (.git) are not.

    *above*: the real folders that this one lies in; a link to one of them has no end. Raises OSError.
    """
    here = os.path.join(root, below)
    above = (*above, os.path.realpath(here))
    for name in sorted(os.listdir(here)):
        path = os.path.join(below, name)
        real = os.path.join(root, path)
        if name.startswith("."):
            continue
        if not os.path.exists(real):
            yield path, None
        elif os.path.isfile(real):
            yield path, os.stat(real)
        elif os.path.isdir(real) and os.path.realpath(real) not in above:
            yield from _walk(root, path, above)
