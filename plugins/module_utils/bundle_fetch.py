# SPDX-License-Identifier: Apache-2.0
"""The assets of a release as one stream of bytes, each compared with its locked digest.

With a cache folder every byte is also kept, so that a killed run goes on by range; without
one a broken connection is still resumed within the run, but a killed run starts anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator

from .assets import asset_url
from .fetch import Download, FetchError, Policy
from .gunzip import CHUNK
from .lock import Asset, Release
from .module import Refused


class WrongDigest(Refused):
    """A whole asset arrived and is not the locked one. ``asset`` is its name."""

    def __init__(self, release: Release, asset: Asset, size: int, got: str, url: str) -> None:
        self.asset = asset.name
        super().__init__(
            f"{asset.name} of release {release.tag}: expected sha256 {asset.sha256} ({asset.size} bytes), "
            f"got {got} ({size} bytes) from {url}.",
            "Either the transfer is damaged or the release was re-created since the lock was written. "
            "Nothing of it was activated. If the new bytes are wanted, remove the entry from the lock "
            "file and lock the release again.",
        )


class Source:
    """Where a release comes from: *base_url* (the tag is appended) and a cache, or none."""

    def __init__(
        self,
        release: Release,
        base_url: str,
        cache: str | None = None,
        policy: Policy | None = None,
        token: str = "",
    ) -> None:
        self.release = release
        self.cache = cache
        self.fetched = 0  # bytes that came over the network
        self.retries = 0
        self._base_url = base_url
        self._token = token
        self._policy = policy or Policy()

    def chunks(self) -> Generator[bytes, None, None]:
        """All assets in their order. Raises WrongDigest, FetchError, OSError."""
        for asset in self.release.assets:
            if self.cache is None:
                yield from self._plain(asset)
            else:
                yield from self._cached(asset, os.path.join(self.cache, asset.name))

    def _plain(self, asset: Asset) -> Generator[bytes, None, None]:
        digest = hashlib.sha256()
        for chunk in self._download(asset, 0):
            digest.update(chunk)
            yield chunk
        self._compare(asset, asset.size, digest.hexdigest())

    def _cached(self, asset: Asset, path: str) -> Generator[bytes, None, None]:
        digest, size = hashlib.sha256(), 0
        with open(path, "a+b", buffering=0) as stream:
            if stream.seek(0, os.SEEK_END) > asset.size:
                stream.truncate(0)
            stream.seek(0)
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
                yield chunk
            for chunk in self._download(asset, size):
                try:
                    _write(stream.fileno(), chunk)
                except OSError as error:
                    error.filename = path  # a write that fails does not say where
                    raise
                digest.update(chunk)
                yield chunk
        try:
            self._compare(asset, asset.size, digest.hexdigest())
        except WrongDigest:
            os.unlink(path)  # the next attempt begins this asset anew
            raise

    def _download(self, asset: Asset, start: int) -> Generator[bytes, None, None]:
        if start >= asset.size:
            return
        download = Download(
            self.url(asset), asset.size, self._policy, self._token, kept=self.cache is not None
        )
        try:
            for chunk in download.chunks(start):
                self.fetched += len(chunk)
                yield chunk
        except FetchError as error:
            if error.status != 404:
                raise
            remedy = "The release was removed or re-created, or vllm_rocm_base_url is wrong."
            raise FetchError(error.found, remedy, error.status) from error
        finally:
            self.retries += download.retries

    def url(self, asset: Asset) -> str:
        """Where *asset* is fetched from."""
        return asset_url(self._base_url, self.release.tag, asset.name)

    def _compare(self, asset: Asset, size: int, got: str) -> None:
        if got != asset.sha256:
            raise WrongDigest(self.release, asset, size, got, self.url(asset))


def _write(handle: int, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[os.write(handle, left) :]
