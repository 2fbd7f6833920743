# SPDX-License-Identifier: Apache-2.0
"""The kernel that was proven stays: its metapackages are held, its packages and the old ones are kept.

A box that an update gave another kernel overnight is what taught this (ROCm#6139). A hold also keeps
security updates of the kernel away, so it has a date, and doctor tells its age.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from . import dpkg, paths
from .host import Host

# linux-generic-hwe-24.04, linux-image-oem-24.04d, linux-headers-amd64 …: what pulls the next kernel in.
_META = re.compile(
    r"linux(-image|-headers|-modules-extra|-image-unsigned|-image-extra)?"
    r"-(generic|oem|virtual|kvm|lowlatency|realtime|nvidia|nvidia-lowlatency|aws|azure|gcp|oracle|ibm|intel"
    r"|amd64|cloud-amd64|rt-amd64)(-64k)?(-hwe)?(-\d+\.\d+[a-z]?)?(-edge)?"
)
_PARTS = "image|image-unsigned|modules|modules-extra|headers"
DAY = 86400
UNKNOWN = "?"  # the kernel of a record that cannot be read, or of a hold that is lifted: it is to be set anew


@dataclass(frozen=True)
class Hold:
    """Our record. ``since``: seconds since 1970; ``packages``: those that we put on hold."""

    kernel: str
    since: int
    packages: tuple[str, ...]

    def days(self, now: float) -> int:
        """Its age."""
        return max(0, int(now - self.since) // DAY)


def read(host: Host) -> Hold | None:
    """Our record, or None where we hold nothing (an unreadable record: nothing is known of)."""
    text = host.read(paths.KERNEL_HOLD)
    if text is None:
        return None
    try:
        record = json.loads(text)
        return Hold(str(record["kernel"]), int(record["since"]), tuple(map(str, record["packages"])))
    except (ValueError, KeyError, TypeError, OverflowError):  # 1e400 is a number to json
        return Hold(UNKNOWN, 0, ())


def metas(host: Host) -> list[str]:
    """Installed metapackages that pull kernels in."""
    known = dpkg.packages(host)
    return sorted(name for name, package in known.items() if _META.fullmatch(name) and package.installed)


def hold(host: Host, release: str) -> None:
    """Hold the installed metapackages for *release*. What a person has held is not ours to release.

    A hold that is set again for the same kernel keeps its age. Raises CommandFailed, OSError.
    """
    before = read(host)
    known = dpkg.packages(host)
    ours = before.packages if before is not None else ()
    names = tuple(name for name in metas(host) if known[name].want != "hold" or name in ours)
    if names:
        host.run(["apt-mark", "hold", *names])
    same = before is not None and before.since > 0 and before.kernel in (release, UNKNOWN)
    since = before.since if before is not None and same else int(time.time())
    _write(host, Hold(release, since, names))


def _write(host: Host, held: Hold) -> None:
    record = {"kernel": held.kernel, "since": held.since, "packages": list(held.packages)}
    host.write(paths.KERNEL_HOLD, json.dumps(record, indent=1) + "\n")


def _unhold(host: Host, held: Hold) -> None:
    known = dpkg.packages(host)
    names = [name for name in held.packages if name in known and known[name].want == "hold"]
    if names:
        host.run(["apt-mark", "unhold", *names])


def release(host: Host) -> None:
    """Release what we hold. Raises CommandFailed."""
    held = read(host)
    if held is None:
        return
    _unhold(host, held)
    os.unlink(host.path(paths.KERNEL_HOLD))


@contextmanager
def lifted(host: Host) -> Iterator[None]:
    """While kernels are installed: apt would not change what we hold. Raises CommandFailed, OSError.

    The record stays meanwhile, for no kernel: after a pulled plug the next run sets the hold again.
    """
    before = read(host)
    if before is None:
        yield
        return
    _write(host, replace(before, kernel=UNKNOWN))
    _unhold(host, before)
    try:
        yield
    finally:
        hold(host, before.kernel)


def keep(host: Host, releases: Sequence[str]) -> None:
    """apt's autoremove leaves these kernels alone. Raises OSError."""
    lines = "".join(
        f'  "^linux-({_PARTS})-{re.escape(name)}$";\n' for name in dict.fromkeys(releases) if name
    )
    host.write(
        paths.KERNEL_KEEP,
        "// Managed by lemonade-deploy (role kernel): the kernel of its choice and the one to fall back to.\n"
        f"APT::NeverAutoRemove {{\n{lines}}};\n",
    )
