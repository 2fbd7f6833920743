# SPDX-License-Identifier: Apache-2.0
"""The kernel layer: a kernel is installed, booted once, and becomes the default only after the proof.

Order matters (tried on real boots): the default is set to the *running* kernel before anything is
unpacked, then the kernel is installed. The one-shot entry comes last of all (role activate, after the
initramfs was rebuilt): a plug pulled before that boots the old kernel. See module ``trial``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import (
    amdgpu_module,
    apt,
    apt_refusal,
    boot_gate,
    disk,
    dpkg,
    dpkg_world,
    driver_state,
    grub,
    initramfs,
    kernel_hold,
    kernel_signing,
    mainline_install,
    secure_boot,
    trial,
    trial_menu,
)
from .activation import Due, kernel_reason, marked
from .change import Call, Change, WriteFile
from .host import CommandFailed, Host
from .kernel_choice import AptSource, Deb
from .module import Refused

LAYER = "kernel"


@dataclass(frozen=True)
class KernelWish:
    """The kernel that is to run. ``dkms``: AMD's DKMS driver must be built for it.

    ``packages`` are what apt is asked for, or the names of ``debs``.
    """

    release: str
    packages: tuple[str, ...]
    dkms: bool = False
    debs: tuple[Deb, ...] = ()  # of a mainline build
    target: str = ""  # apt's target release (backports)
    apt_source: AptSource | None = None  # to be added first
    hold: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        """apt's options for the packages."""
        return ("-t", self.target) if self.target else ()


@dataclass(frozen=True)
class KernelState:
    """What the plan is made from. ``grub`` is None where GRUB does not boot this host."""

    running: str
    installed: bool
    grub: grub.Grub | None
    missing: tuple[str, ...] = ()
    source: str | None = None  # text of the file that wish.apt_source names
    entries: trial_menu.Entries | None = None  # ours, at the top of the menu
    held: kernel_hold.Hold | None = None


def is_installed(host: Host, wish: KernelWish) -> bool:
    """Whether the wanted kernel is there whole: with its amdgpu, which minimal installs of Ubuntu leave out.

    Under Secure Boot a mainline build was signed as well (a plug may have been pulled before that).
    """
    there = wish.release in initramfs.installed_kernels(host)
    bare = not wish.dkms and driver_state.lacks_own_module(host, wish.release)
    unsigned = bool(wish.debs) and secure_boot.enabled(host) and not kernel_signing.signed(host, wish.release)
    return there and not bare and not unsigned


def due(state: KernelState, wish: KernelWish) -> Due:
    """What the plan needs at boot."""
    if wish.release == state.running:
        return Due() if state.installed else Due(initramfs=True, reboot=("amdgpu is not loaded",))
    reason = kernel_reason(wish.release, state.running)
    complete = state.installed and not state.missing
    return Due(initramfs=not complete, reboot=(reason,), kernel=wish.release)


def demand_grub(state: KernelState) -> grub.Grub:
    """GRUB's state, where it can boot a kernel once and fall back. Raises Refused."""
    if state.grub is None:
        raise Refused(
            f"this host has no {grub.GRUB_CFG}: another boot loader starts it",
            "install and select the kernel by hand, then run again with kernel_source: keep",
        )
    if grub.entry_of(state.grub.menu, state.running) is None:
        raise Refused(
            f"{grub.GRUB_CFG} has no entry for the running kernel {state.running}: no way back",
            "run update-grub and look why the running kernel is not in the menu",
        )
    return state.grub


def plan(state: KernelState, wish: KernelWish) -> list[Change]:
    """Pure. Raises Refused where GRUB cannot boot a kernel once."""
    if not wish.release or (wish.release == state.running and state.installed):
        return _hold(state, wish) if state.held is not None else []
    # What only lacks its modules is not tried: it runs.
    changes = [] if wish.release == state.running else _pin(state, wish, demand_grub(state))
    if not state.installed or state.missing:
        if wish.apt_source is not None and state.source != wish.apt_source.content:
            changes.append(_add_source(state, wish.apt_source))
        from_where = f"; {mainline_install.describe(wish.debs)}" if wish.debs else ""
        names = ", ".join(dict.fromkeys([*wish.packages, *state.missing]))
        detail = f"{wish.release} ({names}{from_where})"
        operation = Call(lambda host: install(host, wish, state))
        changes.append(Change(LAYER, "kernel", "install", detail, operations=(operation,)))
    changes += _hold(state, wish)
    return marked(changes, due(state, wish))


def _pin(state: KernelState, wish: KernelWish, boot: grub.Grub) -> list[Change]:
    if trial.pinned(boot, state.entries, state.running):
        return []
    operation = Call(lambda host: trial.pin(host, state.running, wish.release))
    before, after = f"{boot.default_release()}\n", f"{state.running}\n"
    detail = f"saved entry = the running kernel {state.running}"
    return [Change(LAYER, "grub default", "pin", detail, before, after, (operation,))]


def _hold(state: KernelState, wish: KernelWish) -> list[Change]:
    """Once a kernel of our choice is there, what would pull another one in is held."""
    if not wish.hold:
        if state.held is None:
            return []
        detail = ", ".join(state.held.packages) or "nothing is held"
        return [Change(LAYER, "kernel hold", "release", detail, operations=(Call(kernel_hold.release),))]
    wanted = wish.release or state.running
    if state.held is not None and state.held.kernel == wanted:
        return []
    operation = Call(lambda host: kernel_hold.hold(host, wanted))
    return [Change(LAYER, "kernel hold", "set", f"metapackages, for {wanted}", operations=(operation,))]


def _add_source(state: KernelState, source: AptSource) -> Change:
    return Change(
        LAYER,
        "backports source",
        "add",
        source.path,
        before=state.source or "",
        after=source.content,
        operations=(WriteFile(source.path, source.content),),
    )


def install(host: Host, wish: KernelWish, state: KernelState) -> None:
    """Install the kernel's packages and read back that image and modules are there.

    Raises Refused, CommandFailed.
    """
    errors = apt.update(host)
    packages = [*wish.packages, *state.missing]
    kernel_hold.keep(host, [state.running, wish.release])
    with kernel_hold.lifted(host), initramfs.held(host) as path:
        if wish.debs:
            packages = mainline_install.install(host, wish.debs, wish.release, path)
        else:
            apt.apt_get(host, "install", *wish.options, *packages, path=path)
        host.run(["apt-mark", "manual", *packages])
        # Ubuntu keeps amdgpu.ko in a package of its own, which metas bring and bare images do not.
        if amdgpu_module.on_disk(host, wish.release).origin == amdgpu_module.NONE:
            extra = _existing(host, [f"linux-modules-extra-{wish.release}"])
            if extra:
                apt.apt_get(host, "install", *extra, path=path)
        _put_back(host, wish.release, path)
    if wish.release not in initramfs.installed_kernels(host):
        told = f" (apt update: {'; '.join(errors)})" if errors else ""
        raise Refused(
            f"{', '.join(packages)} did not bring kernel {wish.release}{told}",
            "see `apt-cache policy` of these packages; the archive may have moved on: run again",
        )
    if not is_installed(host, wish):
        raise Refused(
            f"{', '.join(packages)} brought kernel {wish.release} without amdgpu",
            f"install linux-modules-extra-{wish.release} (Ubuntu keeps it there), or set kernel_source",
        )


def _put_back(host: Host, release: str, path: str) -> None:
    """A kernel whose package is installed and whose files are gone is not brought by installing it."""
    if release in initramfs.installed_kernels(host):
        return
    known = dpkg.packages(host)
    kinds = ("image", "image-unsigned", "modules", "modules-extra")
    names = [f"linux-{kind}-{release}" for kind in kinds]
    there = [name for name in names if name in known and known[name].installed]
    if there:
        apt.apt_get(host, "--reinstall", "install", *there, path=path)


def _existing(host: Host, packages: Sequence[str]) -> list[str]:
    with apt.PrivateApt(host) as private:
        return sorted(private.candidates(packages))


def missing_packages(host: Host, wish: KernelWish, known: Sequence[str]) -> tuple[str, ...]:
    """What an installed kernel still lacks: its headers, where DKMS is to build for it.

    *known*: installed packages. Other modules than AMD's count as well (mainline's headers are its own).
    """
    builds = wish.dkms or (not wish.debs and bool(boot_gate.others_unbuilt(host, wish.release)))
    wanted = [f"linux-headers-{wish.release}"] if builds else []
    have_build = host.is_dir(f"/lib/modules/{wish.release}/build")
    return tuple(name for name in wanted if name not in known and not have_build)


def demand_space(host: Host) -> None:
    """Refuse where /boot cannot hold one kernel more. Raises Refused."""
    free = disk.free_bytes(host, "/boot") // disk.MIB
    needed = max(disk.BOOT_MIN_MIB, _like_the_running(host) // disk.MIB + 1)
    if free < needed:
        raise Refused(
            f"/boot has {free} MiB free, a kernel and its initramfs need {needed} MiB",
            "remove old kernels (apt-get autoremove --purge), but not the running one",
        )


def _like_the_running(host: Host) -> int:
    """Bytes of the running kernel in /boot, its initramfs twice: a new one is written beside the old."""
    release = host.running_kernel()
    sizes = [_size(host, f"/boot/vmlinuz-{release}"), 2 * _size(host, initramfs.image(release))]
    return sum(sizes)


def _size(host: Host, path: str) -> int:
    try:
        return os.stat(host.path(path)).st_size
    except FileNotFoundError:
        return 0


def installed(host: Host) -> list[str]:
    """Names of the packages that dpkg has installed and finished."""
    return [name for name, package in dpkg.packages(host).items() if package.state == "installed"]


def simulate(
    host: Host,
    wish: KernelWish,
    missing: Sequence[str],
    held: kernel_hold.Hold | None = None,
    *,
    gone: Callable[[str], bool] | None = None,
    repaired: bool = False,
) -> None:
    """Ask apt, on fresh private lists, that the packages exist and remove nothing. Raises Refused.

    *held*: what we hold ourselves is released before the installation, and held again after it.
    *gone*: packages that an earlier layer will have taken away; *repaired*: it will have seen to what
    dpkg left half-way.
    """
    status = None
    if held is not None or gone is not None or repaired:
        status = dpkg_world.after(
            host,
            gone=gone or (lambda _name: False),
            released=held.packages if held is not None else (),
            finished=repaired,
        )
    if wish.debs:
        mainline_install.simulate(host, wish.debs, status)
        return
    packages = [*wish.packages, *missing]
    planned = {wish.apt_source.path: wish.apt_source.content} if wish.apt_source else None
    with apt.PrivateApt(host, sources=planned, status=status) as private:
        errors = private.update()
        unknown = sorted(set(packages) - set(private.candidates(packages)))
        if unknown:
            told = f": {'; '.join(errors)}" if errors else ""
            raise Refused(f"apt has no {', '.join(unknown)}{told}", "check the host's apt sources")
        broken = ["--fix-broken"] if repaired else []
        try:
            removed = private.simulate_install([*broken, *wish.options, *packages]).remove
        except CommandFailed as error:
            doing = f"installing {', '.join(packages)}"
            raise apt_refusal.explain(error, doing, packages, ", or set kernel_source: keep") from error
    if removed:
        raise Refused(
            f"installing {', '.join(packages)} would remove {', '.join(removed)}",
            "remove these by hand if nobody needs them, or set kernel_source",
        )
