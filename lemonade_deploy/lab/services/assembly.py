# SPDX-License-Identifier: Apache-2.0
"""Make everything that the lab serves, once for one state of its sources."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import catalog
from . import keys as openpgp
from . import pki, repositories, upstream

_MARK = ".lab-services"  # in www: the digest of what stands there
# Modules that decide what is in the sites (the server's own do not).
_DECIDING = ("amdgpu", "debs", "kernels", "keys", "mainline", "repositories", "sources", "upstream")


@dataclass(frozen=True)
class Services:
    """What lab core needs to start the server and to furnish the guests.

    ``key_paths`` and ``key_files`` (armored and dearmored) and ``fingerprints`` are by role:
    ``amd``, ``ppa``, ``archive``, ``mainline``, and ``amd-expired`` (the key ``amd`` in its older form).
    """

    www: Path
    address: str
    hostnames: tuple[str, ...]
    key_paths: Mapping[str, Path]
    key_files: Mapping[str, Path]
    fingerprints: Mapping[str, str]
    ca_pem: Path
    certificate: Path
    certificate_key: Path


def build(cache: Path, www: Path, progress: Callable[[str], None]) -> Services:
    """Make repositories, keys and certificates below *cache* and lay the sites into *www*.

    One process at a time works in *cache* (another waits), so several labs may share it. Only the
    folders of this module's own host names are touched in *www*. What is there
    already for the same sources stays (then it takes milliseconds). Raises LabError where a program is
    missing or Debian's mirror gives no package.
    """
    home = cache / "services"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build(home, www, progress)


def _build(home: Path, www: Path, progress: Callable[[str], None]) -> Services:
    keys = openpgp.ensure_keys(home / "keys")
    certificates = pki.ensure_pki(home / "pki")
    wanted = _digest(keys)
    sites = home / f"sites-{wanted}"
    if not sites.is_dir():
        progress("building the simulated apt repositories")
        _build_sites(home, sites, keys, progress)
    mark = www / _MARK
    if not mark.exists() or mark.read_text("utf-8").strip() != wanted:
        _lay(sites, www)
        mark.write_text(wanted + "\n", "utf-8")
    return Services(
        www=www,
        address=catalog.ADDRESS,
        hostnames=catalog.HOSTNAMES,
        key_paths={role: key.armored for role, key in keys.items()},
        key_files={role: key.binary for role, key in keys.items()},
        fingerprints={role: key.fingerprint for role, key in keys.items()},
        ca_pem=certificates.ca,
        certificate=certificates.certificate,
        certificate_key=certificates.key,
    )


def _digest(keys: Mapping[str, openpgp.Key]) -> str:
    """Digest of the sources of everything built here, and of the keys that sign it."""
    here = Path(__file__).resolve().parent
    sources = [here / f"{name}.py" for name in _DECIDING] + [*(here / "scripts").iterdir()]
    sources += [here.parent / "catalog.py", here.parent / "kmod.py"]
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    for role in sorted(keys):
        digest.update(f"{role} {keys[role].fingerprint}\n".encode())
    return digest.hexdigest()[:16]


def _build_sites(
    home: Path, sites: Path, keys: Mapping[str, openpgp.Key], progress: Callable[[str], None]
) -> None:
    names = (*catalog.REAL_PPA_PACKAGES, *catalog.REAL_ARCHIVE_PACKAGES)
    if len(upstream.present(home / "real", names)) < len(names):
        progress(f"fetching from Debian what is served again: {', '.join(names)}")
    real = upstream.fetch(home / "real", names)
    unfinished = sites.with_name(sites.name + ".unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    repositories.build_sites(unfinished, keys, real)
    for older in home.glob("sites-*"):
        if older != unfinished:
            shutil.rmtree(older)
    unfinished.rename(sites)


def _lay(sites: Path, www: Path) -> None:
    """Replace each site in *www* by a copy of the built one (a copy: tests may spoil what is served)."""
    www.mkdir(parents=True, exist_ok=True)
    for site in sorted(sites.iterdir()):
        target = www / site.name
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(site, target, symlinks=True)
