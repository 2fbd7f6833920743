# SPDX-License-Identifier: Apache-2.0
"""Taking AMD's DKMS driver off a host, also where its own scripts fail at it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence

from . import apt, apt_refusal, dkms, dpkg, dpkg_world, driver_state, initramfs, modprobe_conf
from .host import CommandFailed, Completed, Host
from .refusal import Refused

_FORCE = ("--force-remove-reinstreq", "--force-confold", "--force-confdef")


def refusals(host: Host, packages: Sequence[str]) -> list[str]:
    """Packages outside the allow-list that purging *packages* would take along. Changes nothing.

    Raises Refused where neither apt nor dpkg sees a way to remove them.
    """
    with apt.PrivateApt(host) as private:
        try:
            gone: Sequence[str] = private.simulate_purge(packages).remove
        except CommandFailed:
            # apt refuses to plan anything while some dependency is unmet; dpkg judges these alone.
            gone = dpkg_world.dependants(host, packages, driver_state.may_go)
            done = host.run(["dpkg", "--no-act", *_FORCE, "--purge", *gone], check=False)
            if done.rc != 0:
                raise _unremovable(done, gone) from None
    return [name for name in gone if not driver_state.may_go(name)]


def _unremovable(done: Completed, packages: Sequence[str]) -> Refused:
    lines = re.findall(r"^ ((\S+) depends on \S+?)[.;]?$", done.stderr, re.MULTILINE)
    needed = list(dict.fromkeys(line for line, name in lines if name not in packages))
    if needed:
        return Refused(
            f"{', '.join(packages)} cannot be purged: {'; '.join(needed)}",
            "remove these packages by hand if nobody needs them, or use amdgpu_driver_policy: dkms",
        )
    return Refused(
        f"{', '.join(packages)} cannot be purged: {CommandFailed(done)}",
        "repair what dpkg names (`dpkg --audit`), then run again",
    )


def demand(host: Host, state: driver_state.DriverState) -> None:
    """Refuse, before a change, a purge or a repair of dpkg that could not be done. Raises Refused."""
    names = sorted(state.packages)
    foreign = refusals(host, names) if names else []
    if foreign:
        raise Refused(
            f"purging {', '.join(names)} would also remove {', '.join(foreign)}",
            "remove these packages by hand if nobody needs them, or use amdgpu_driver_policy: dkms",
        )
    if state.unfinished:
        _foresee_repair(host, state)


def _foresee_repair(host: Host, state: driver_state.DriverState) -> None:
    """What :func:`finish_dpkg` will ask of apt once AMD's packages are gone."""
    known = dpkg.packages(host)
    broken = [name for name in state.unfinished if _cut(known[name])]
    if not broken:
        return  # dpkg itself can end these
    status = dpkg_world.after(host, gone=driver_state.may_go if state.packages else lambda _name: False)
    doing = f"repairing {', '.join(broken)}, which dpkg left half-installed,"
    with apt.PrivateApt(host, status=status) as private:
        try:
            removed = private.simulate_repair(broken).remove
        except CommandFailed as error:
            raise apt_refusal.explain(error, doing, broken) from error
    if removed:
        raise Refused(f"{doing} would remove {', '.join(removed)}", "see `apt-get -s --fix-broken install`")


def _cut(package: dpkg.Package) -> bool:
    """Whether it was cut while unpacking, so that only unpacking it anew helps."""
    return package.reinstall or package.state == "half-installed"


def repair_trees(host: Host) -> None:
    """Remove versions of the DKMS tree that no dkms command can work on (source or dkms.conf gone)."""
    for version in dkms.read_versions(host):
        if version.broken:
            _remove(host, version.path)


def finish_dpkg(host: Host) -> None:
    """End what dpkg began and did not finish; a package cut while unpacking is installed anew.

    Raises CommandFailed.
    """
    with initramfs.held(host) as path:
        apt.wait_for_locks(host)
        environment = {"PATH": path} if path else {}
        argv = ["dpkg", "--force-confold", "--force-confdef", "--configure", "-a"]
        done = host.run(argv, check=False, env=environment, timeout=3600)
        left = dpkg.unfinished(dpkg.packages(host))
        if not left:
            return
        broken = [package.name for package in left if _cut(package)]
        if not broken and done.rc != 0:
            raise CommandFailed(done)
        apt.apt_get(host, "--fix-broken", "--reinstall", "install", *broken, path=path)


def purge(host: Host, packages: Sequence[str]) -> None:
    """Purge *packages* and what depends on them (judged before by :func:`refusals`).

    apt first; dpkg alone where apt cannot work (interrupted dpkg, unmet dependencies); at last
    without the packages' own scripts, whose work :func:`sweep` does. Raises CommandFailed.
    """
    with initramfs.held(host) as path:
        try:
            apt.apt_get(host, "purge", *packages, path=path)
            return
        except CommandFailed:
            pass  # the next two ways are for exactly this; the last one's failure is told
        apt.wait_for_locks(host)
        environment = {"PATH": path} if path else {}
        # apt would have taken along what depends on them.
        packages = dpkg_world.dependants(host, packages, driver_state.may_go)
        left = _known(host, packages)
        if host.run(["dpkg", *_FORCE, "--purge", *left], check=False, env=environment).rc != 0:
            left = _known(host, packages)
            _silence(host, left)
            host.run(["dpkg", *_FORCE, "--purge", *left], env=environment)


def _known(host: Host, packages: Sequence[str]) -> list[str]:
    installed = dpkg.packages(host)
    return [name for name in packages if name in installed and installed[name].known]


def _silence(host: Host, packages: Sequence[str]) -> None:
    """Replace the maintainer scripts of *packages* (about to be purged) by ones that do nothing."""
    for name in packages:
        for script in ("prerm", "postrm", "postinst"):
            path = f"{dpkg.INFO}/{name}.{script}"
            if host.exists(path):
                host.write(path, "#!/bin/sh\nexit 0\n", 0o755)


def sweep(host: Host, firmware: Sequence[str] = ()) -> None:
    """Remove exactly what AMD's scripts leave behind, and tell depmod. Raises CommandFailed, OSError.

    *firmware*: files that AMD's packages owned before they went.
    """
    lift_blacklist(host)
    for path in (driver_state.HOOK, *firmware, *driver_state.left_firmware(host)):
        _remove(host, path)
    _remove_if_empty(host, driver_state.FIRMWARE)
    modules = driver_state.driver_modules(host)
    for path in modules:
        _remove(host, path)
        _remove_if_empty(host, os.path.dirname(path))
        _remove_if_empty(host, os.path.dirname(os.path.dirname(path)))
    restored = restore_originals(host)
    for version in dkms.read_versions(host):
        _remove(host, version.path)
    for name in host.listdir(driver_state.DKMS_TREE):
        if name.startswith("kernel-"):
            _remove(host, f"{driver_state.DKMS_TREE}/{name}")
    # What else is in there (a module put aside that has no place to go back to) stays.
    _remove_if_empty(host, driver_state.DKMS_TREE)
    for release in sorted({path.split("/")[3] for path in [*modules, *restored]}):
        host.run(["depmod", release])


def restore_originals(host: Host) -> list[str]:
    """Put back the kernels' own modules, which DKMS moves into its tree while its module is installed.

    `dkms remove` does that; where it cannot run, the kernel would be left without amdgpu. Newer dkms
    notes the place in a file beside it (``.origin``). Returns the restored files.
    """
    restored = []
    for path in host.glob(f"{driver_state.ORIGINALS}/*/*/*.ko*"):
        if path.endswith(".origin"):
            continue
        release, name = path[len(driver_state.ORIGINALS) + 1 :].split("/")[0], os.path.basename(path)
        home = f"/lib/modules/{release}/kernel"
        place = (host.read(f"{path}.origin") or "").partition("\n")[0]
        if not place.startswith(f"{home}/"):
            place = f"{home}/drivers/gpu/drm/amd/{name.partition('.')[0]}/{name}"
        if host.is_dir(home) and not host.exists(place):
            # /var may be another disk than /lib: half a copy in that place would pass for the whole module.
            with open(host.path(path), "rb") as stream:
                host.write(place, stream.read(), 0o644)
            restored.append(place)
        _remove(host, path)
        _remove(host, f"{path}.origin")
        for folder in (os.path.dirname(path), os.path.dirname(os.path.dirname(path)), driver_state.ORIGINALS):
            _remove_if_empty(host, folder)
    return restored


def lift_blacklist(host: Host) -> None:
    """Take the line ``blacklist amdgpu`` out of AMD's file; the file goes where nothing is left."""
    text = host.text(driver_state.BLACKLIST)
    if text is None:
        return
    rest = modprobe_conf.without_blacklist(text)
    if rest == text:
        return
    if rest.strip():
        host.write(driver_state.BLACKLIST, rest)
    else:
        _remove(host, driver_state.BLACKLIST)


def _remove(host: Host, path: str) -> None:
    real = host.path(path)
    if os.path.isdir(real) and not os.path.islink(real):
        shutil.rmtree(real)
    elif os.path.lexists(real):
        os.unlink(real)


def _remove_if_empty(host: Host, path: str) -> None:
    real = host.path(path)
    if not host.is_dir(path) or host.listdir(path):
        return
    if os.path.islink(real):
        os.unlink(real)  # what it leads to is the owner's (another disk, for example)
    else:
        os.rmdir(real)
