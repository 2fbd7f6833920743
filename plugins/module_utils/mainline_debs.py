# SPDX-License-Identifier: Apache-2.0
"""What a package says of itself, read from its first bytes: planning downloads no package.

A .deb is an ar archive: the control archive comes before the data (deb(5)). With an empty data
archive behind it, it is a package that apt can plan with: dependencies, conflicts, removals.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from io import BytesIO

from . import apt_plan, mainline, mainline_source
from .apt import PrivateApt
from .host import CommandFailed, Host
from .kernel_choice import Deb
from .signature import scratch

_MAGIC = b"!<arch>\n"
_MEMBER = 60  # bytes of a member's header
_FIRST = 64 << 10  # bytes asked for at first: most control archives fit
_LARGEST = 32 << 20  # bytes of a control archive (a headers package lists 30,000 files)


def shortened(host: Host, deb: Deb) -> tuple[bytes, int]:
    """(the package without its data, size of the whole). Raises mainline.Unusable, FetchError, OSError."""
    data, size = mainline_source.head(host, deb.url, _FIRST)
    end = _control_end(data, deb.url)
    if end > len(data):
        data, size = mainline_source.head(host, deb.url, end)
        if len(data) < end:
            raise mainline.Unusable(f"{deb.url} is cut off")
    return data[:end] + _empty_data(), size


def _control_end(data: bytes, url: str) -> int:
    """Where the control archive ends; it is the second member of every package."""
    at = len(_MAGIC)
    try:
        if not data.startswith(_MAGIC):
            raise ValueError("no ar archive")
        for name in ("debian-binary", "control.tar"):
            header = data[at : at + _MEMBER]
            if not header.decode("ascii").startswith(name):
                raise ValueError(f"{name} is missing")
            size = int(header[48:58])
            at += _MEMBER + size + size % 2
    except ValueError as error:
        raise mainline.Unusable(f"{url} is no Debian package ({error})") from error
    if at > _LARGEST:
        raise mainline.Unusable(f"{url} has a control archive of {at} bytes")
    return at


def _empty_data() -> bytes:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w"):
        pass
    content = buffer.getvalue()
    header = f"{'data.tar':<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
    return header.encode() + content


def simulate(host: Host, debs: Sequence[Deb], apt: PrivateApt) -> tuple[apt_plan.Simulation, tuple[Deb, ...]]:
    """What installing *debs* would do, and *debs* with their sizes.

    A host whose packages are broken as they are says nothing about *debs*: :func:`sound` tells the two apart.

    Raises mainline.Unusable where apt finds no way (a dependency that no source has), FetchError, OSError.
    """
    sized, paths = [], []
    with scratch(host, "mainline") as folder:
        for deb in debs:
            content, size = shortened(host, deb)
            path = f"{folder}/{deb.name}.deb"
            host.write(path, content)
            sized.append(deb._replace(size=size))
            paths.append(path)
        try:
            simulation = apt.simulate_install(paths)
        except CommandFailed as error:
            raise mainline.Unusable(f"apt cannot install {_names(debs)}: {_unmet(error)}") from error
    return simulation, tuple(sized)


def sound(apt: PrivateApt) -> bool:
    """Whether apt can plan at all on this host; half-installed packages keep it from that until repaired."""
    try:
        apt.simulate_install(())
    except CommandFailed:
        return False
    return True


def _names(debs: Sequence[Deb]) -> str:
    return ", ".join(deb.name for deb in debs)


def _unmet(error: CommandFailed) -> str:
    """The lines in which apt names what is missing, else its errors."""
    both = f"{error.done.stdout}\n{error.done.stderr}"
    lines = [
        " ".join(line.split()) for line in both.splitlines() if "Depends:" in line or "Conflicts:" in line
    ]
    return "; ".join(lines[:4]) or "; ".join(apt_plan.errors(error.done.stderr)) or str(error)
