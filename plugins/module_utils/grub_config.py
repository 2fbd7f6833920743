# SPDX-License-Identifier: Apache-2.0
"""grub.cfg made anew, so that a host never loses the menu that boots it.

``update-grub`` puts whatever /etc/grub.d printed in place, also a menu without a single kernel (10_linux
not executable, a vendor's script in its place). Here it is made beside grub.cfg, read, and only then renamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from . import grub
from .host import Host

CANDIDATE = "/boot/grub/grub.cfg.lemonade-deploy"


def regenerate(host: Host) -> None:
    """Write grub.cfg anew. Raises CommandFailed, grub.EntryMissing (grub.cfg is then as it was)."""
    try:
        # What update-grub runs, with another target.
        host.run(["grub-mkconfig", "-o", CANDIDATE], timeout=600)
        data = host.read_bytes(CANDIDATE) or b""
        _demand_kernels(host, data.decode("utf-8", "surrogateescape"))
        host.write(grub.GRUB_CFG, data, _mode(host, grub.GRUB_CFG))
    finally:
        for path in (CANDIDATE, f"{CANDIDATE}.new"):
            if host.exists(path):
                os.unlink(host.path(path))


def _demand_kernels(host: Host, text: str) -> None:
    """The running kernel and the default one of now keep an entry that boots them."""
    old = grub.read(host)
    menu = grub.parse_menu(text)
    running = host.running_kernel()
    kept = dict.fromkeys([running, old.default_release() if old else ""])
    for release in kept:
        if not release or not host.exists(f"/boot/vmlinuz-{release}"):
            continue
        initrd = host.exists(f"/boot/initrd.img-{release}")
        if not any(entry.initrd or not initrd for entry in grub.entries_of(menu, release)):
            lacking = "with an initrd " if grub.entries_of(menu, release) else ""
            raise grub.EntryMissing(
                f"grub-mkconfig made a menu without an entry {lacking}for kernel {release}; "
                f"{grub.GRUB_CFG} was left as it was: see /etc/grub.d (is 10_linux executable?)"
            )
    if not grub.entries_of(menu, None):
        raise grub.EntryMissing(
            f"grub-mkconfig made a menu without a kernel; {grub.GRUB_CFG} was left as it was: see /etc/grub.d"
        )


def _mode(host: Host, path: str) -> int:
    try:
        return os.stat(host.path(path)).st_mode & 0o777
    except FileNotFoundError:
        return 0o444


@contextmanager
def undone(host: Host, files: Sequence[str]) -> Iterator[None]:
    """Put *files* back as they were (or away) where what is done meanwhile fails. Raises what it raised."""
    before = {path: (host.read_bytes(path), _mode(host, path)) for path in files}
    try:
        yield
    except BaseException:
        for path, (data, mode) in before.items():
            if host.read_bytes(path) == data:
                continue
            if data is None:
                os.unlink(host.path(path))
            else:
                host.write(path, data, mode)
        raise
