# SPDX-License-Identifier: Apache-2.0
"""Read a mainline tree, on the web or in a folder of the host, and trust only what the pinned key signed."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Generator
from typing import NamedTuple

from . import mainline, signature
from .fetch import READ, Download, FetchError, Policy
from .host import Host
from .kernel_choice import Deb, Mainline
from .refusal import Refused

KEYSERVER = "https://keyserver.ubuntu.com/pks/lookup?op=get&options=mr&search=0x"
KIND = "kernel-source-refused"  # the finding
# Planning asks a few small files: who does not answer soon is told, a run can be repeated.
_POLICY = Policy(attempts=3, timeout=30.0)
_LIMIT = 4 << 20  # bytes of a page or a list; the real index has some 0.5 MB


class Tampered(Refused):
    """What should be signed by the pinned key is not: never worked around."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found, remedy, KIND)


class Names(NamedTuple):
    """What the settings are called where the user gives them; by default the roles' variables."""

    url: str = "kernel_mainline_url"
    fingerprint: str = "kernel_mainline_key_fingerprint"
    otherwise: str = ", or another kernel_source"


VARIABLES = Names()


class Tree:
    """The files below a mainline mirror. ``local`` is the folder on the host, empty for an address."""

    def __init__(self, host: Host, url: str) -> None:
        self._host = host
        self.local = local_path(url)
        self.url = "" if self.local else url.rstrip("/")

    def place(self, path: str) -> str:
        """Address of a file, for people and for the decision."""
        return f"file://{urllib.parse.quote(self.local)}/{path}" if self.local else f"{self.url}/{path}"

    def read(self, path: str) -> bytes | None:
        """A small file; None where there is none. Raises FetchError."""
        if self.local:
            return self._host.read_bytes(f"{self.local}/{path}")
        return download(f"{self.url}/{path}")

    def page(self, folder: str) -> str | None:
        """The page of a folder: on the web its address, in a mirror made by wget its index.html."""
        data = self.read(f"{folder}index.html" if self.local else folder)
        return None if data is None else data.decode("utf-8", "replace")

    def versions(self) -> list[mainline.Version]:
        """The stable versions there are, newest first. Raises mainline.Unusable, FetchError."""
        if self.local:
            if not self._host.is_dir(self.local):
                raise mainline.Unusable(f"{self.local} is no folder on this host")
            return mainline.versions(self._host.listdir(self.local))
        page = self.page("")
        if page is None:
            raise mainline.Unusable(f"{self.url}/ is not there (HTTP 404)")
        return mainline.versions(mainline.folders(page))


def local_path(url: str) -> str:
    """The path of a file URL or of a plain absolute path; empty for anything else."""
    if url.startswith("file://"):
        try:
            return urllib.parse.unquote(urllib.parse.urlsplit(url).path).rstrip("/") or "/"
        except ValueError:  # file://[
            return ""
    return (url.rstrip("/") or "/") if url.startswith("/") else ""


def download(url: str, limit: int = _LIMIT) -> bytes | None:
    """A small file from the web; None where the server says 404. Raises FetchError."""
    data = b""
    try:
        for chunk in Download(url, policy=_POLICY).chunks():
            data += chunk
            if len(data) > limit:
                raise FetchError(f"{url}: more than {limit} bytes.")
    except FetchError as error:
        if error.status == 404:
            return None
        raise
    return data


def read_key(host: Host, settings: Mainline) -> bytes:
    """The key file that the settings name. Raises mainline.Unusable, FetchError."""
    fingerprint = signature.normal(settings.fingerprint)
    place = settings.key or f"{KEYSERVER}{fingerprint}"
    local = local_path(place)
    data = host.read_bytes(local) if local else download(place)
    if not data:
        raise mainline.Unusable(f"the signing key {fingerprint} is not at {local or place}")
    return data


class Reader:
    """Builds of one tree; the key is fetched once, and only when there is something to verify."""

    def __init__(self, host: Host, settings: Mainline, names: Names = VARIABLES) -> None:
        self._host = host
        self._settings = settings
        self._names = names
        self._key = b""
        self.tree = Tree(host, settings.url)

    def build(self, version: mainline.Version, headers: bool) -> tuple[Deb, ...]:
        """The packages of a version's newest build, vouched for by the key.

        Raises mainline.Unusable, FetchError, Tampered.
        """
        page = self.tree.page(f"{version.folder}/")
        if page is None:
            raise mainline.Unusable(f"{self.tree.place(version.folder)}/ has no page")
        if not mainline.succeeded(page):
            raise mainline.Unusable(f"the amd64 build of {version.folder} has not succeeded")
        folder = f"{version.folder}/amd64"
        packages = mainline.select(version, self._checksums(folder), headers)
        return tuple(
            Deb(package.name, self.tree.place(f"{folder}/{package.file}"), package.sha256)
            for package in packages
        )

    def _checksums(self, folder: str) -> dict[str, str]:
        path = f"{folder}/CHECKSUMS"
        data, signed = self.tree.read(path), self.tree.read(f"{path}.gpg")
        if data is None:
            raise mainline.Unusable(f"{self.tree.place(path)} is not there")
        if signed is None:
            raise Tampered(
                f"{self.tree.place(path)} has no signature (CHECKSUMS.gpg)",
                "Nothing was changed. Take a whole mirror of kernel.ubuntu.com/mainline as "
                f"{self._names.url}{self._names.otherwise}.",
            )
        self._key = self._key or read_key(self._host, self._settings)
        fault = signature.why_not(self._host, data, signed, self._key, self._settings.fingerprint)
        if fault:
            raise Tampered(
                f"{self.tree.place(path)} is not signed by {signature.normal(self._settings.fingerprint)}: "
                f"{fault}",
                f"Nothing was changed. Compare {self._names.fingerprint} with what Ubuntu publishes "
                "(wiki.ubuntu.com/Kernel/MainlineBuilds); do not go on with this mirror.",
            )
        return mainline.checksums(data.decode("utf-8", "replace"))


def stream(
    host: Host, url: str, start: int = 0, size: int = 0, policy: Policy | None = None
) -> Generator[bytes, None, None]:
    """The bytes of a package from *start* on, from the web or from a folder. *size* 0: not known.

    Raises FetchError, OSError.
    """
    local = local_path(url)
    if not local:
        yield from Download(url, size or None, policy, kept=True).chunks(start)
        return
    with open(host.path(local), "rb") as file:
        file.seek(start)
        while chunk := file.read(READ):
            yield chunk


def head(host: Host, url: str, wanted: int) -> tuple[bytes, int]:
    """(the first *wanted* bytes or less, the file's size) of a package. Raises FetchError, OSError."""
    local = local_path(url)
    if local:
        with open(host.path(local), "rb") as file:
            return file.read(wanted), os.stat(host.path(local)).st_size
    download_ = Download(url, policy=_POLICY)
    chunks, data = download_.chunks(), b""
    for chunk in chunks:
        data += chunk
        if len(data) >= wanted:
            break
    chunks.close()
    return data[:wanted], download_.size or 0
