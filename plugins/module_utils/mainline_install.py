# SPDX-License-Identifier: Apache-2.0
"""Fetch the packages of a mainline build, compare each with the signed list, and install them.

They come into a folder of the kit's, and go on where they broke. Only when as many are verified as are
wanted, apt installs the files (not dpkg: dependencies are resolved), and the folder is removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence

from . import apt, disk, dpkg, kernel_signing, mainline, mainline_debs, paths, progress, secure_boot
from .fetch import Policy
from .host import Host
from .kernel_choice import Deb
from .mainline_candidates import demand_bootable
from .mainline_source import KIND, local_path, stream
from .refusal import Refused

_READ = 1 << 20


def demand_room(host: Host, debs: Sequence[Deb]) -> None:
    """Refuse where the packages do not fit on the disk, packed and unpacked. Raises Refused."""
    wanted = sum(deb.size for deb in debs)
    free = disk.free_bytes(host, paths.CACHE_DIR)
    # Unpacked, the modules take about three times what the packages do.
    if free < 4 * wanted:
        raise Refused(
            f"{paths.KERNEL_CACHE} has {free // disk.MIB} MiB free, the kernel's packages need "
            f"{4 * wanted // disk.MIB} MiB with what they unpack",
            "free some space and run again",
        )


def simulate(host: Host, debs: Sequence[Deb], status: str | None = None) -> None:
    """Ask apt, on fresh private lists, whether the packages can be installed. Raises Refused, OSError.

    *status*: dpkg's status file as it will be then.
    """
    demand_bootable(host, secure_boot.enabled(host))
    demand_room(host, debs)
    with apt.PrivateApt(host, status=status) as private:
        private.update()
        try:
            simulation, _sized = mainline_debs.simulate(host, debs, private)
        except mainline.Unusable as error:
            raise Refused(
                f"{error}", "take another kernel_source or kernel_version (docs/kernel.md)"
            ) from error
    if simulation.remove:
        raise Refused(
            f"installing {', '.join(deb.name for deb in debs)} would remove {', '.join(simulation.remove)}",
            "remove these by hand if nobody needs them, or set kernel_source",
        )


def fetch(host: Host, debs: Sequence[Deb], policy: Policy | None = None) -> list[str]:
    """Paths of *debs* on the host, every one of them verified. Raises Refused (FetchError), OSError."""
    verified, files = [], []
    for deb in debs:
        files.append(_fetch(host, deb, policy))
        verified.append(deb.name)
    try:
        mainline.demand_counted([deb.name for deb in debs], verified)
    except mainline.Unusable as error:
        raise Refused(f"{error}", "run again", KIND) from error
    return files


def _fetch(host: Host, deb: Deb, policy: Policy | None) -> str:
    path = f"{paths.KERNEL_CACHE}/{deb.name}.deb"
    part = f"{path}.part"
    os.makedirs(host.path(paths.KERNEL_CACHE), exist_ok=True)
    if _digest(host, path).hexdigest() == deb.sha256:
        return path
    resumed = host.exists(part)
    if _complete(host, deb, part, policy):
        os.replace(host.path(part), host.path(path))
        return path
    os.unlink(host.path(part))
    # What an earlier run left may be of another build; a file fetched in one go is what the server has.
    if resumed and _complete(host, deb, part, policy):
        os.replace(host.path(part), host.path(path))
        return path
    if host.exists(part):
        os.unlink(host.path(part))
    raise Refused(
        f"{deb.url} is not the file that the signed CHECKSUMS names (SHA-256 differs).",
        "Nothing was installed. The mirror is damaged or tampered with: do not go on with it "
        "(kernel_mainline_url).",
        KIND,
    )


def _complete(host: Host, deb: Deb, part: str, policy: Policy | None) -> bool:
    """Append what is missing to *part*; whether it then is the wanted file. Raises FetchError, OSError."""
    digest = _digest(host, part)
    with open(host.path(part), "ab") as out:
        start = out.tell()
        if not deb.size or start < deb.size:
            wire = stream(host, deb.url, start, deb.size, policy)
            for chunk in progress.bytes_told(host, deb.name, wire, start, deb.size or None):
                digest.update(chunk)
                out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest() == deb.sha256


def _digest(host: Host, path: str) -> hashlib._Hash:
    digest = hashlib.sha256()
    if os.path.isfile(host.path(path)):
        with open(host.path(path), "rb") as file:
            while chunk := file.read(_READ):
                digest.update(chunk)
    return digest


def install(host: Host, debs: Sequence[Deb], release: str, path: str = "") -> list[str]:
    """Fetch, verify, install, sign where Secure Boot is on, and read back; the packages' names.

    ``path`` becomes dpkg's PATH. Raises Refused, CommandFailed, OSError.
    """
    files = fetch(host, debs)
    # Reinstalled where dpkg has them already: this kernel is asked for because its files are not there.
    apt.apt_get(host, "install", "--reinstall", *files, path=path)
    known = dpkg.packages(host)
    names = [deb.name for deb in debs]
    missing = [name for name in names if name not in known or known[name].state != "installed"]
    if missing:
        raise Refused(f"apt did not install {', '.join(missing)}", "see `apt-get install -f` and run again")
    if secure_boot.enabled(host):
        kernel_signing.sign(host, release)
    shutil.rmtree(host.path(paths.KERNEL_CACHE))
    return names


def describe(debs: Sequence[Deb]) -> str:
    """Where they come from, for the plan: the folder and the size."""
    first = debs[0].url
    folder = (local_path(first) or first).rpartition("/")[0]
    return f"{len(debs)} packages, {sum(deb.size for deb in debs) / disk.MIB:.0f} MiB, {folder}"
