# SPDX-License-Identifier: Apache-2.0
"""A release in a depot: its tar archive once more, as independent zstd frames with digests.

The index is a help, no authority: it is not in the lock file. A damaged chunk is noticed by
it at once; that the whole is the locked release, the unpacked tree's digest says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .lock import Release

NAME = "chunks.json"
SCHEMA = "lemonade-deploy/depot/1"
PLAIN = 8 << 20  # bytes of the tar archive in one chunk: what a host holds in memory
LIMIT = 4 << 20  # bytes of an index: 10,000 chunks and more
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BadIndex(ValueError):
    """No index, or not one of the wanted release; says why."""


@dataclass(frozen=True)
class Chunk:
    """One zstd frame; size in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """``archive``: digest over the locked assets, ``size``: bytes of the tar archive.

    ``plain``: bytes of it in each chunk but the last.
    """

    tag: str
    archive: str
    size: int
    chunks: tuple[Chunk, ...]
    plain: int = PLAIN

    def text(self) -> str:
        """The file's content."""
        chunks = [[chunk.name, chunk.size, chunk.sha256] for chunk in self.chunks]
        document: dict[str, Any] = {"schema": SCHEMA, "tag": self.tag, "archive": self.archive}
        document |= {"size": self.size, "plain": self.plain}
        return json.dumps({**document, "chunks": chunks}) + "\n"


def parse(text: str, release: Release) -> Index:
    """The index of *release*. Raises BadIndex."""
    try:
        content: Mapping[str, Any] = json.loads(text)
        chunks = tuple(Chunk(*_fields(entry)) for entry in content["chunks"])
        plain = int(content.get("plain", PLAIN))
        index = Index(content["tag"], content["archive"], int(content["size"]), chunks, plain)
        schema = content["schema"]
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise BadIndex(f"{NAME} cannot be read: {error}") from error
    if schema != SCHEMA:
        raise BadIndex(f"{NAME} is of schema {schema!r}, not {SCHEMA}")
    if (index.tag, index.archive) != (release.tag, release.archive):
        raise BadIndex(f"{NAME} was made of other bytes than the locked ones of {release.tag}")
    if not 0 < index.plain <= 2 * PLAIN or len(chunks) != -(-index.size // index.plain):
        raise BadIndex(f"{NAME} has {len(chunks)} chunks of {index.plain} bytes for {index.size}")
    return index


def _fields(entry: Any) -> tuple[str, int, str]:
    name, size, sha256 = str(entry[0]), int(entry[1]), str(entry[2])
    if not re.fullmatch(r"[0-9]{5}\.zst", name) or not 0 < size <= 2 * PLAIN or not _SHA256.fullmatch(sha256):
        raise ValueError(f"odd chunk {name!r}")
    return name, size, sha256
