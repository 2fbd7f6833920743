# SPDX-License-Identifier: Apache-2.0
"""The manifest of a tree: one line for each file, folder and link, and one digest of it all.

    f MODE SIZE SHA256 PATH
    d MODE PATH
    l PATH -> TARGET

sorted by path, MODE in octal. Times and owners are left out: they say nothing about what
the bundle does. A hard link counts as the file it is.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

from .gunzip import CHUNK

# What the kit itself puts in a tree; never part of the manifest.
OWN_PREFIX = ".lemonade-deploy"


class Manifest:
    """Entries by path. ``files`` counts regular files, ``size`` their bytes."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._added: list[str] = []
        self.files = 0
        self.size = 0

    def add_file(self, path: str, mode: int, size: int, sha256: str) -> None:
        """Note a regular file."""
        self.forget(path)
        self._note(path, f"f {mode:o} {size} {sha256} {path}")
        self.files += 1
        self.size += size

    def add_folder(self, path: str, mode: int) -> None:
        """Note a folder."""
        self._note(path, f"d {mode:o} {path}")

    def add_link(self, path: str, target: str) -> None:
        """Note a symbolic link."""
        self.forget(path)
        self._note(path, f"l {path} -> {target}")

    def _note(self, path: str, line: str) -> None:
        self._entries[path] = line
        self._added.append(line)

    def added(self) -> list[str]:
        """The lines noted since the last call, in their order."""
        lines, self._added = self._added, []
        return lines

    def file(self, path: str) -> tuple[int, int, str] | None:
        """(mode, size, sha256) of a regular file noted under *path*, or None."""
        line = self._entries.get(path, "")
        if not line.startswith("f "):
            return None
        _kind, mode, size, sha256, _path = line.split(" ", 4)
        return int(mode, 8), int(size), sha256

    def kind(self, path: str) -> str | None:
        """f, d or l, or None where *path* is not noted."""
        line = self._entries.get(path)
        return line[0] if line else None

    def forget(self, path: str) -> None:
        """Drop *path*, which a later member replaces."""
        known = self.file(path)
        if known:
            self.files -= 1
            self.size -= known[1]
        self._entries.pop(path, None)

    def lines(self) -> Iterator[str]:
        """The manifest's lines, sorted by path."""
        return (self._entries[path] for path in sorted(self._entries))

    def text(self) -> str:
        """The manifest as one text."""
        return "".join(f"{line}\n" for line in self.lines())

    def digest(self) -> str:
        """sha256 of the text, in hexadecimal."""
        digest = hashlib.sha256()
        for line in self.lines():
            digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
        return digest.hexdigest()


def of_tree(root: str) -> Manifest:
    """Read every file below *root* (seconds for gigabytes). Raises OSError."""
    manifest = Manifest()
    _walk(root, "", manifest)
    return manifest


def _walk(root: str, below: str, manifest: Manifest) -> None:
    with os.scandir(os.path.join(root, below)) as entries:
        for entry in sorted(entries, key=lambda found: found.name):
            if not below and entry.name.startswith(OWN_PREFIX):
                continue
            path = os.path.join(below, entry.name)
            status = entry.stat(follow_symlinks=False)
            if entry.is_symlink():
                manifest.add_link(path, os.readlink(entry.path))
            elif entry.is_dir():
                manifest.add_folder(path, status.st_mode & 0o7777)
                _walk(root, path, manifest)
            else:
                manifest.add_file(path, status.st_mode & 0o7777, status.st_size, file_sha256(entry.path))


def file_sha256(path: str) -> str:
    """sha256 of a file's content, in hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
