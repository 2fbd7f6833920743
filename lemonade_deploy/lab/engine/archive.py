# SPDX-License-Identifier: Apache-2.0
"""A bundle tree as the release assets of lemonade-sdk/vllm-rocm: one gzip stream, cut into parts."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...domain.assets import part_names, partcount_name
from ..shell import LabError

CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class Asset:
    """A file of a release; ``size`` in bytes."""

    name: str
    size: int
    sha256: str


def pack(tree: Path, folder: Path, tag: str, part_size: int) -> list[Asset]:
    """Write *tree* (archive root ``.``) in parts of *part_size* bytes below *folder*.

    Returns the assets: the partcount first, then the parts in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Level 1: the lab pays for compressing once and for unpacking on every host.
    squeeze = ["pigz", "-1", "-n"] if shutil.which("pigz") else ["gzip", "-1", "-n"]
    words = ["tar", "--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]
    # --mode: readable for the service's user whatever the umask of this machine is.
    words += ["--mtime=@0", "--mode=a+rX,u+w", "--hard-dereference", "-C", str(tree), "."]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE) as tar,
        subprocess.Popen(squeeze, stdin=tar.stdout, stdout=subprocess.PIPE) as gzip,
    ):
        assert tar.stdout is not None and gzip.stdout is not None
        tar.stdout.close()  # so that tar ends when gzip does
        parts = list(_split(gzip.stdout, folder, part_size))
    if tar.returncode != 0 or gzip.returncode != 0:
        raise LabError(f"packing {tree} failed (tar {tar.returncode}, {squeeze[0]} {gzip.returncode})")
    count = f"{len(parts)}\n".encode()
    (folder / partcount_name(tag)).write_bytes(count)
    assets = [Asset(partcount_name(tag), len(count), hashlib.sha256(count).hexdigest())]
    for name, part in zip(part_names(tag, len(parts)), parts, strict=True):
        (folder / part.name).rename(folder / name)
        assets.append(Asset(name, part.size, part.sha256))
    return assets


def _split(stream: IO[bytes], folder: Path, part_size: int) -> Iterator[Asset]:
    """Cut *stream* into files with working names (the number of parts is known at the end only)."""
    number, data = 0, stream.read(min(CHUNK, part_size))
    while data:
        number += 1
        path, size, digest = folder / f".part{number}", 0, hashlib.sha256()
        with path.open("wb") as part:
            while data:
                part.write(data)
                digest.update(data)
                size += len(data)
                data = stream.read(min(CHUNK, part_size - size)) if size < part_size else b""
        yield Asset(path.name, size, digest.hexdigest())
        data = stream.read(min(CHUNK, part_size))
