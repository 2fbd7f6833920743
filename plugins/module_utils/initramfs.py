# SPDX-License-Identifier: Apache-2.0
"""One initramfs rebuild a kernel, at the end, whatever packages and options changed before.

Maintainer scripts of amdgpu-dkms, of kernels and of dkms each rebuild on their own: up to six
rebuilds of a minute each on a real box. While the kit changes packages they find a stand-in; it
lives in /run and in dpkg's PATH only, so a pulled plug leaves nothing but the due-marker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from . import grub, grub_config, paths
from .alone import alone
from .host import CommandFailed, Host
from .refusal import Refused

# apt's own default for DPkg::Path (apt.conf(5)), behind the stand-in.
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_REAL = ("/usr/sbin/update-initramfs", "/sbin/update-initramfs")
# Ubuntu 25.10 and later, Fedora and RHEL come with dracut; Debian's and Ubuntu's writes the same
# /boot/initrd.img-<release> as initramfs-tools does.
UPDATE_INITRAMFS, DRACUT, MKINITCPIO = "update-initramfs", "dracut", "mkinitcpio"
_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
_OSTREE = "/run/ostree-booted"
_LOCK = "/run/lemonade-deploy-initramfs.lock"
_LOCK_WAIT = 900  # s: a rebuild takes a minute a kernel
_NOT_FOUND = 127  # a program that is not there (host.run_command)

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
        with suppress(FileNotFoundError):  # a run that outlived its controller ended first
            os.unlink(host.path(stand_in))


def installed_kernels(host: Host) -> list[str]:
    """Releases that have an image in /boot and a module folder."""
    names = (path[len("/boot/vmlinuz-") :] for path in host.glob("/boot/vmlinuz-*"))
    return [name for name in names if host.is_dir(f"/lib/modules/{name}")]


def image(release: str) -> str:
    """Path of a kernel's initramfs on Debian and Ubuntu, with initramfs-tools or with dracut."""
    return f"/boot/initrd.img-{release}"


def image_on(host: Host, release: str) -> str:
    """Path of a kernel's initramfs on this host: Fedora, RHEL and Arch name it another way."""
    other = f"/boot/initramfs-{release}.img"
    return other if host.exists(other) and not host.exists(image(release)) else image(release)


class NotWritten(OSError):
    """The tool ended well but left an image as it was (``update_initramfs=no``, /boot full)."""


def tool(host: Host) -> str:
    """What writes the images here: update-initramfs (also where dracut brings one), dracut, or mkinitcpio."""
    for name in (UPDATE_INITRAMFS, DRACUT, MKINITCPIO):
        if any(host.exists(f"{folder}/{name}") for folder in _FOLDERS):
            return name
    return UPDATE_INITRAMFS


def rebuild(host: Host) -> None:
    """Rebuild every installed kernel's initramfs once, and the menu where one was missing.

    Raises CommandFailed, NotWritten, grub.EntryMissing, and Refused where something else makes this host's
    images, or another run makes them for too long.
    """
    if host.exists(_OSTREE):
        raise Refused(
            "the initramfs belongs to the image of the operating system (ostree)",
            "run `sudo rpm-ostree initramfs --enable`, reboot, then run again",
        )
    name = tool(host)
    # Two at once write into one file, and the images of all kernels go bad, the known-good one's too.
    with alone(host, _LOCK, _LOCK_WAIT, "rebuilding the initramfs"):
        if name == MKINITCPIO:
            _mkinitcpio(host)
        else:
            _each_kernel(host, name)
    os.sync()


def _each_kernel(host: Host, name: str) -> None:
    missing = []
    for release in installed_kernels(host):
        path = image_on(host, release)
        before = _stamp(host, path)
        missing += [] if before else [release]
        argv = (
            [DRACUT, "--force", "--kver", release, path]
            if name == DRACUT
            else [UPDATE_INITRAMFS, "-u" if before else "-c", "-k", release]
        )
        done = host.run(argv, check=False, timeout=1800)
        if done.rc == _NOT_FOUND and name == UPDATE_INITRAMFS:
            raise Refused(
                f"this host has none of {UPDATE_INITRAMFS}, {DRACUT} and {MKINITCPIO} for its initramfs",
                "rebuild it with the tool that made it, reboot, then run again",
            )
        if done.rc != 0:
            raise CommandFailed(done)
        if _stamp(host, path) == before:
            raise NotWritten(f"{name} did not write {path}")
    if missing and host.exists(grub.GRUB_CFG):
        grub_config.regenerate(host)  # an entry made before its initramfs has no initrd line


def _mkinitcpio(host: Host) -> None:
    """Arch: images belong to presets, not to releases; one call makes them all."""
    before = {path: _stamp(host, path) for path in host.glob("/boot/initramfs-*.img")}
    host.run([MKINITCPIO, "-P"], timeout=1800)
    if before and all(_stamp(host, path) == stamp for path, stamp in before.items()):
        raise NotWritten(f"{MKINITCPIO} -P wrote none of {', '.join(before)}")


def _stamp(host: Host, path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(host.path(path))
    except FileNotFoundError:
        return None
    return (status.st_mtime_ns, status.st_ino)
