# SPDX-License-Identifier: Apache-2.0
"""Debian's backports as an apt source: the host's own where it has one, else one of ours.

Ours is a file of its own, from the mirror that the host already uses and signed by Debian's own keyring.
Backports are never taken by themselves (the archive's "NotAutomatic"): only the kernel's packages are asked
for with the target release. To undo, remove the kernel and then the file.
"""

from __future__ import annotations

from . import apt_sources, paths
from .apt_formats import Entry
from .distribution import Distribution
from .host import Host
from .kernel_choice import AptSource

MIRROR = "https://deb.debian.org/debian"
KEYRINGS = (
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
)
# A kernel is in main, the firmware that goes with it in non-free-firmware (since Debian 12).
_COMPONENTS = ("main", "non-free-firmware")

_TEXT = """\
# Written by lemonade-deploy (role kernel, kernel_source {0}): a kernel with the CWSR fix comes from here.
# Nothing else is taken from backports unless it is asked for. To undo: remove the kernel, then this file.
Types: deb
URIs: {1}
Suites: {2}
Components: {3}
Signed-By: {4}
"""


def suite(distribution: Distribution) -> str:
    """``trixie-backports``; empty for what is not Debian itself or has no codename (sid)."""
    known = distribution.id == "debian" and distribution.codename and distribution.version
    return f"{distribution.codename}-backports" if known else ""


def configured(entries: list[Entry], distribution: Distribution) -> str:
    """The suite under which the host already has backports (its codename's or stable's), else empty."""
    wanted = (suite(distribution), "stable-backports")
    there = [entry.suite for entry in apt_sources.active(entries) if "main" in entry.components]
    return next((name for name in wanted if name and name in there), "")


def plan(host: Host, distribution: Distribution, kernel_source: str) -> tuple[str, AptSource | None]:
    """(apt's target release, the source to add or None where the host has it); ("", None): no backports."""
    wanted = suite(distribution)
    if not wanted:
        return "", None
    entries = apt_sources.entries(apt_sources.read_sources(host))
    there = configured(entries, distribution)
    if there:
        return there, None
    own = _own_archive(entries, distribution)
    keyring = next((path for path in KEYRINGS if host.exists(path)), KEYRINGS[0])
    signed_by = own.signed_by if own is not None and own.signed_by.startswith("/") else keyring
    components = [name for name in _COMPONENTS if own is None or name in own.components] or ["main"]
    text = _TEXT.format(kernel_source, own.uri if own else MIRROR, wanted, " ".join(components), signed_by)
    return wanted, AptSource(paths.BACKPORTS_SOURCE, text)


def _own_archive(entries: list[Entry], distribution: Distribution) -> Entry | None:
    """The entry of the release itself: its mirror has backports too (they share one archive)."""
    names = (distribution.codename, "stable")
    return next(
        (
            entry
            for entry in apt_sources.active(entries)
            if entry.suite in names and "main" in entry.components and not apt_sources.is_amd(entry)
        ),
        None,
    )
