# SPDX-License-Identifier: Apache-2.0
"""A mainline kernel into the depot: its packages, and all that a host wants to see before it trusts them.

Read and verified here as a host does it (domain.mainline_source): what the pinned key has signed, and
nothing else. Hosts do the same again with `kernel_mainline_url: DEPOT/mainline`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from lemonade_deploy.depot import packages, store
from lemonade_deploy.depot.packages import Package, Progress
from lemonade_deploy.domain import mainline, mainline_source
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.kernel_choice import Deb, Mainline
from lemonade_deploy.domain.mainline import Unusable, Version

KEY = f"{store.MAINLINE}/key.asc"
OPTIONS = mainline_source.Names("--url", "--fingerprint", "")


class NoSuchVersion(FetchError):
    """What was given is no version of a kernel."""


def version_of(text: str) -> Version:
    """The version that *text* (6.18.20, v6.18.20, 6.18.20-061820-generic) means. Raises NoSuchVersion."""
    found = mainline.versions([f"v{text.removeprefix('v').partition('-')[0]}"])
    if not found:
        raise NoSuchVersion(f"{text} is no stable version of a mainline kernel (like 6.18.20).")
    return found[0]


def take(folder: Path, version: Version, settings: Mainline, progress: Progress) -> list[Package]:
    """Bring a version's newest build below *folder*; every package has the signed digest.

    Raises FetchError (not there, not usable), mainline_source.Tampered, OSError.
    """
    host = Host()
    reader = mainline_source.Reader(host, settings, OPTIONS)
    try:
        debs = _debs(reader, version)
        key = mainline_source.read_key(host, settings)
    except Unusable as error:
        raise FetchError(
            f"{settings.url}: {error}.",
            "Name another VERSION, another mirror (--url), or another key (--key).",
        ) from error
    base = f"{store.MAINLINE}/{version.folder}"
    page = reader.tree.page(f"{version.folder}/") or ""
    kept = [_keep(folder, KEY, key), _keep(folder, f"{base}/index.html", page.encode())]
    for name in ("CHECKSUMS", "CHECKSUMS.gpg"):
        path = f"{version.folder}/amd64/{name}"
        url = "" if reader.tree.local else reader.tree.place(path)
        kept.append(_keep(folder, f"{base}/amd64/{name}", reader.tree.read(path) or b"", url))
    for deb in debs:
        path = f"{base}/amd64/{deb.url.rpartition('/')[2]}"
        source = mainline_source.local_path(deb.url) or deb.url
        kept.append(packages.take(folder, path, source, deb.sha256, progress))
    return kept


def _debs(reader: mainline_source.Reader, version: Version) -> Sequence[Deb]:
    """With headers, for hosts with DKMS modules; some builds have none. Raises Unusable."""
    try:
        return reader.build(version, headers=True)
    except Unusable:
        return reader.build(version, headers=False)


def changes_alone(path: str) -> bool:
    """Whether a file may differ from one day to the next without a meaning: the key file, a page."""
    return path == KEY or path.endswith("/index.html")


def _keep(folder: Path, path: str, data: bytes, url: str = "") -> Package:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Package(path, len(data), hashlib.sha256(data).hexdigest(), url, now)
