# SPDX-License-Identifier: Apache-2.0
"""One initramfs rebuild a kernel, at the end, whatever packages and options changed before.

Maintainer scripts of amdgpu-dkms, of kernels and of dkms each rebuild on their own: up to six
rebuilds of a minute each on a real box. While the kit changes packages they find a stand-in; it
lives in /run and in dpkg's PATH only, so a pulled plug leaves nothing but the due-marker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from . import grub, paths
from .host import Host

# apt's own default for DPkg::Path (apt.conf(5)), behind the stand-in.
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_REAL = ("/usr/sbin/update-initramfs", "/sbin/update-initramfs")

_STAND_IN = """\
#!/bin/sh
# Stand-in of lemonade-deploy while it changes packages: the rebuild is done once, at the end
# (role activate). Everything but create and update goes to the real program.
for word in "$@"; do
  case "$word" in
    --*) ;;
    -*u* | -*c*) echo "update-initramfs $*: held back by lemonade-deploy, done at the end"; exit 0 ;;
  esac
done
exec {real} "$@"
"""


@contextmanager
def held(host: Host) -> Iterator[str]:
    """Hold rebuilds back; gives the PATH for dpkg ("" where this host has no update-initramfs)."""
    real = next((path for path in _REAL if host.exists(path)), None)
    if real is None:
        yield ""
        return
    stand_in = f"{paths.HOLD_DIR}/update-initramfs"
    host.write(stand_in, _STAND_IN.format(real=real), 0o755)
    try:
        yield f"{paths.HOLD_DIR}:{_PATH}"
    finally:
        os.unlink(host.path(stand_in))


def installed_kernels(host: Host) -> list[str]:
    """Releases that have an image in /boot and a module folder."""
    names = (path[len("/boot/vmlinuz-") :] for path in host.glob("/boot/vmlinuz-*"))
    return [name for name in names if host.is_dir(f"/lib/modules/{name}")]


def image(release: str) -> str:
    """Path of a kernel's initramfs on Debian and Ubuntu."""
    return f"/boot/initrd.img-{release}"


class NotWritten(OSError):
    """update-initramfs ended well but left an image as it was (``update_initramfs=no``, /boot full)."""


def rebuild(host: Host) -> None:
    """Rebuild every installed kernel's initramfs once, and the menu where one was missing.

    Raises CommandFailed, NotWritten.
    """
    missing = []
    for release in installed_kernels(host):
        before = _stamp(host, release)
        missing += [] if before else [release]
        host.run(["update-initramfs", "-u" if before else "-c", "-k", release], timeout=1800)
        if _stamp(host, release) == before:
            raise NotWritten(f"update-initramfs did not write {image(release)}")
    if missing and host.exists(grub.GRUB_CFG):
        grub.regenerate(host)  # an entry made before its initramfs has no initrd line
    os.sync()


def _stamp(host: Host, release: str) -> tuple[int, int] | None:
    try:
        status = os.stat(host.path(image(release)))
    except FileNotFoundError:
        return None
    return (status.st_mtime_ns, status.st_ino)
