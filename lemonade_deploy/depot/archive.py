# SPDX-License-Identifier: Apache-2.0
"""A depot's releases and their lock as one tar file, for machines without a network.

The release's own files are in it, not the chunks: these are made anew where it is imported,
from bytes that were compared with the lock that came along.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import yaml

from lemonade_deploy.depot import store
from lemonade_deploy.depot.lock import merge
from lemonade_deploy.domain.bundle_fetch import WrongDigest
from lemonade_deploy.domain.gunzip import CHUNK, ArchiveError
from lemonade_deploy.domain.lock import FILE_NAME, Asset, Release, document, parse

LOCK_LIMIT = 16 << 20  # bytes


def missing(folder: Path, releases: Mapping[str, Release]) -> list[str]:
    """Assets that are not in the depot with their sizes."""
    return [
        f"{release.tag}/{asset.name}"
        for release in releases.values()
        for asset in release.assets
        if not (path := folder / release.tag / asset.name).is_file() or path.stat().st_size != asset.size
    ]


def export(folder: Path, releases: Mapping[str, Release], target: Path) -> int:
    """Write *target*; gives its bytes. Raises OSError."""
    partial = target.with_name(target.name + store.PARTIAL)
    text = yaml.safe_dump(document(releases), sort_keys=False).encode()
    with tarfile.open(partial, "w") as tar:
        member = tarfile.TarInfo(FILE_NAME)
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
        for release in releases.values():
            for asset in release.assets:
                member = tarfile.TarInfo(f"{release.tag}/{asset.name}")
                member.size = asset.size
                with (folder / release.tag / asset.name).open("rb") as stream:
                    tar.addfile(member, stream)
    partial.replace(target)
    return target.stat().st_size


def bring_in(
    source: Path, folder: Path, known: dict[str, Release]
) -> tuple[dict[str, Release], dict[str, Release]]:
    """Put the releases of an exported file into the depot; gives them, and *known* with them.

    Raises ArchiveError (not such a file), Changed (*known* says otherwise), WrongDigest, LockError, OSError.
    """
    try:
        with tarfile.open(source, "r|") as tar:
            releases = _locked(tar)
            merged = dict(known)
            for release in releases.values():
                merged = merge(merged, release)  # before anything in the depot is replaced
            _unpack(tar, folder, releases)
            return releases, merged
    except (tarfile.TarError, EOFError) as error:
        raise ArchiveError(f"{source}: {error}") from error


def _locked(tar: tarfile.TarFile) -> dict[str, Release]:
    first = tar.next()
    content = tar.extractfile(first) if first and first.size <= LOCK_LIMIT else None
    if first is None or first.name != FILE_NAME or content is None:
        raise ArchiveError(f"it does not begin with a {FILE_NAME}")
    return parse(yaml.safe_load(content.read()), FILE_NAME)


def _unpack(tar: tarfile.TarFile, folder: Path, releases: Mapping[str, Release]) -> None:
    expected = {f"{r.tag}/{a.name}": (r, a) for r in releases.values() for a in r.assets}
    while member := tar.next():
        # Names are looked up, never used as they are: nothing reaches out of the folder.
        found = expected.pop(member.name, None)
        content = tar.extractfile(member)
        if found is None or content is None:
            raise ArchiveError(f"it holds {member.name!r}, which its lock does not name")
        _take(content, *found, folder, str(tar.name))
    if expected:
        raise ArchiveError(f"it lacks {', '.join(expected)}")


def _take(content: IO[bytes], release: Release, asset: Asset, folder: Path, source: str) -> None:
    """One asset, which gets its name once its digest is right."""
    place = folder / release.tag
    place.mkdir(parents=True, exist_ok=True)
    partial, digest, size = place / (asset.name + store.PARTIAL), hashlib.sha256(), 0
    with partial.open("wb") as stream:
        while data := content.read(CHUNK):
            digest.update(data)
            size += len(data)
            stream.write(data)
    if digest.hexdigest() != asset.sha256:
        partial.unlink()
        raise WrongDigest(release, asset, size, digest.hexdigest(), source)
    partial.replace(place / asset.name)
    (place / (asset.name + store.PROGRESS)).unlink(missing_ok=True)
