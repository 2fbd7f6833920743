# SPDX-License-Identifier: Apache-2.0
"""Models from a folder on the host (a disk that was carried there, a share): for hosts without any hub.

Two layouts are taken: ``FOLDER/ORG/NAME/`` with the repository's files, and a hub cache as another host
has it (``FOLDER/models--ORG--NAME/snapshots/COMMIT/``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from dataclasses import dataclass

from .fetch import READ
from .host import Host
from .hub import File, Repository, needed
from .refusal import Refused


@dataclass(frozen=True)
class Copy:
    """A file of the folder."""

    path: str

    def chunks(self, start: int = 0) -> Generator[bytes, None, None]:
        """The bytes from *start* on."""
        with open(self.path, "rb") as stream:
            stream.seek(start)
            while chunk := stream.read(READ):
                yield chunk


class Folder:
    """Models below *path* on the host. The service's user must be able to read them."""

    def __init__(self, host: Host, path: str) -> None:
        self._host = host
        self.path = path.rstrip("/") or "/"

    def repository(self, name: str) -> Repository:
        """The repository *name*. Raises Refused where the folder does not hold it."""
        base = self._base(name)
        files = tuple(self._files(base))
        if not files:
            raise Refused(
                f"{self.path} holds no model {name}.",
                f"Put its files into {self.path}/{name}, or a hub cache's models--… folder into {self.path}.",
            )
        told = "".join(f"{file.path} {file.size}\n" for file in files)
        commit = hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()  # a name, as long as Git's
        return Repository(name, commit, False, needed(files))

    def check_access(self, repository: Repository) -> None:
        """Nothing to ask for."""

    def download(self, repository: Repository, file: File) -> Copy:
        """One of its files."""
        return Copy(f"{self._host.path(self._base(repository.name))}/{file.path}")

    def text(self, repository: Repository, path: str) -> str | None:
        """A small file, None where there is none."""
        return self._host.read(f"{self._base(repository.name)}/{path}")

    def _base(self, name: str) -> str:
        cache = f"{self.path}/models--{name.replace('/', '--')}"
        commit = self._host.value(f"{cache}/refs/main")
        found = [commit] if commit else self._host.listdir(f"{cache}/snapshots")
        return f"{cache}/snapshots/{found[0]}" if found else f"{self.path}/{name}"

    def _files(self, base: str) -> Generator[File, None, None]:
        real = self._host.path(base)
        for below, folders, names in os.walk(real):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(below, name)
                if os.path.isfile(path) and not name.startswith("."):
                    yield File(os.path.relpath(path, real), os.path.getsize(path))
