# SPDX-License-Identifier: Apache-2.0
"""The dkms side: which apt source, which version, and an installation that can't strand a box."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from . import (
    amdgpu_module,
    apt,
    apt_fetch,
    dkms,
    dkms_kernels,
    dpkg,
    driver_purge,
    driver_releases,
    driver_sources,
    initramfs,
    paths,
)
from .change import Call
from .distribution import read_distribution
from .driver_plan import DkmsSteps, DkmsWish, installed_ok
from .driver_sources import Request, Sources
from .driver_state import DKMS_PACKAGE, FIRMWARE_PACKAGE, DriverState
from .host import CommandFailed, Host
from .module import Refused

_FROM = re.compile(r"/amdgpu/(latest|\d+(?:\.\d+)*)/ubuntu\b")


def make_wish(host: Host, state: DriverState, request: Request) -> DkmsWish:
    """Ask apt (privately) what the planned sources offer. Raises Refused with what is wrong."""
    if not state.has_apt:
        raise Refused(
            f"{read_distribution(host).name} has no apt, with which this kit installs AMD's DKMS driver",
            "use amdgpu_driver_policy: intree (the default on APUs)",
        )
    if not request.version:
        return _as_installed(state)
    driver_releases.demand_form(request.version)
    sources = driver_sources.plan(host, request)
    found = None if sources.texts else _installed(state, request)
    if found is None:
        found = _ask(host, sources, request)
    dkms_version, firmware_version = found
    module = driver_releases.module_version(dkms_version)
    if not installed_ok(state, DKMS_PACKAGE, dkms_version):
        _demand_builds(host, module, request.kernel)
    stays = request.kernel == host.running_kernel()
    headers = f"linux-headers-{request.kernel}"
    present = dpkg.packages(host).get(headers)
    missing = stays and not (present is not None and present.state == "installed")
    return DkmsWish(
        dkms=dkms_version,
        firmware=firmware_version,
        module=module,
        sources=sources,
        headers=headers if missing else None,
        kernel=request.kernel if stays else None,
    )


def _ask(host: Host, sources: Sources, request: Request) -> tuple[str, str]:
    """What the repository of the planned sources offers. Reads only. Raises Refused."""
    if sources.refusal is not None:
        raise sources.refusal
    driver_sources.demand_clear(host, sources.entries)
    with apt.PrivateApt(host, sources=sources.overlay, keys=sources.keys, skip_amd=False) as private:
        if not sources.texts and not sources.keys:
            try:
                return _choose(private, request, [])
            except Refused:
                pass  # the lists may only be old: the server is asked, and its answer counts
        driver_sources.probe(host, sources.entries)
        return _choose(private, request, [line for line in private.update() if _names_driver(line)])


def _as_installed(state: DriverState) -> DkmsWish:
    """A driver that works and whose repository nobody knows: it stays."""
    versions = [
        state.packages[name].version for name in (DKMS_PACKAGE, FIRMWARE_PACKAGE) if name in state.packages
    ]
    if len(versions) < 2:
        raise Refused(
            "AMD's DKMS driver is loaded, but not from its packages, and no source of them is known",
            "set amdgpu_driver_policy to intree, or to dkms for AMD's packages",
        )
    pin = state.pin if state.pin == driver_sources.REPOSITORY_PIN else None
    return DkmsWish(
        versions[0], versions[1], driver_releases.module_version(versions[0]), sources=Sources(pin=pin)
    )


def _installed(state: DriverState, request: Request) -> tuple[str, str] | None:
    """The installed versions where they will do: then nobody is asked."""
    dkms_package, firmware = state.packages.get(DKMS_PACKAGE), state.packages.get(FIRMWARE_PACKAGE)
    if dkms_package and firmware and installed_ok(state, DKMS_PACKAGE, dkms_package.version):
        known = driver_releases.by_module(driver_releases.module_version(dkms_package.version))
        good = known is not None and driver_releases.satisfies(known.repository, request.version)
        same = driver_releases.build(dkms_package.version) == driver_releases.build(firmware.version)
        if good and same and not request.exact and installed_ok(state, FIRMWARE_PACKAGE, firmware.version):
            return dkms_package.version, firmware.version
    return None


def _choose(private: apt.PrivateApt, request: Request, errors: list[str]) -> tuple[str, str]:
    """Versions of driver and firmware, from one build of the wanted repository. Raises Refused."""
    if errors:
        reason = "; ".join(errors)
        raise Refused(
            f"apt cannot use AMD's repository, and nothing was changed: {reason}", apt_fetch.advice(reason)
        )
    candidate = private.candidate(DKMS_PACKAGE)
    if candidate is None or not candidate.uri:  # the installed one alone is in no repository
        raise Refused(
            f"AMD's repository amdgpu/{request.version} offers no {DKMS_PACKAGE} that apt would take",
            "see https://repo.radeon.com/amdgpu/ for the versions there are, and amdgpu_driver_repo_version",
        )
    origin = _FROM.search(candidate.uri)
    if origin is None or not driver_releases.satisfies(origin[1], request.version, request.exact):
        raise Refused(
            f"apt would take {DKMS_PACKAGE} from {candidate.uri}, not from amdgpu/{request.version}",
            "a pin or another source wins; see `apt-cache policy amdgpu-dkms`",
        )
    build = driver_releases.build(candidate.version)
    # Older firmware packages carry an epoch that outranks the newer ones, so the candidate may be wrong.
    same = [text for text in private.versions(FIRMWARE_PACKAGE) if driver_releases.build(text) == build]
    if not same:
        raise Refused(
            f"{DKMS_PACKAGE} {candidate.version} has no {FIRMWARE_PACKAGE} of the same build {build}",
            "driver and firmware must come from one release of the repository",
        )
    return candidate.version, same[0]


def _demand_builds(host: Host, module: str, wanted: str) -> None:
    """Raises Refused; preflight foresees it where no apt need be asked."""
    others = (path.split("/")[3] for path in host.glob("/lib/modules/*/build"))
    refusal = dkms_kernels.refusal(module, wanted, others)
    if refusal is not None:
        raise refusal


def steps(wish: DkmsWish) -> DkmsSteps:
    """The operations of a dkms plan."""
    return DkmsSteps(Call(lambda host: switch(host, wish)), Call(lambda host: install(host, wish)))


def switch(host: Host, wish: DkmsWish) -> None:
    """Write key, pin and sources, update apt, and demand that the wanted repository wins.

    Where apt cannot use them, or cannot be asked, every file goes back with its mode and owner. Raises
    Refused, OSError.
    """
    sources = wish.sources
    contents: dict[str, bytes | None] = {**sources.keys}
    contents[paths.APT_PIN] = sources.pin.encode() if sources.pin else None
    contents.update({path: text.encode("utf-8", "surrogateescape") for path, text in sources.texts.items()})
    kept = [_Kept.of(host, path) for path in contents]
    try:
        for path, content in contents.items():
            if content is not None:
                # A source keeps its mode, as it may hold a password; a key is for the user _apt to read.
                host.write(path, content, None if path in sources.texts else 0o644)
            elif host.exists(path):
                os.unlink(host.path(path))
        errors = [line for line in apt.update(host) if _names_driver(line)] or _loses(host, wish)
    except BaseException:  # a full disk, a lock that nobody lets go: half of the files is no state to stay in
        _restore(host, kept)
        raise
    if not errors:
        return
    _restore(host, kept)
    apt.update(host)  # the lists of the old sources come back; its errors were there before us
    reason = "; ".join(errors)
    raise Refused(
        f"apt cannot use the new source, so every file went back: {reason}",
        apt_fetch.advice(reason)
        or "see https://repo.radeon.com/amdgpu/ for the versions there are, and amdgpu_driver_repo_version",
    )


def _loses(host: Host, wish: DkmsWish) -> list[str]:
    """Why the wanted packages are not apt's own candidates after all; empty where they are."""
    if not wish.sources.entries:
        return []
    with apt.PrivateApt(host, skip_amd=False) as private:
        candidate = private.candidate(DKMS_PACKAGE)
    if candidate is not None and (candidate.version == wish.dkms or _names_driver(candidate.uri)):
        return []
    seen = f"{candidate.version} from {candidate.uri or 'no repository'}" if candidate else "none"
    return [f"apt's candidate for {DKMS_PACKAGE} is {seen}, not AMD's {wish.dkms}"]


class _Kept(NamedTuple):
    """A file as it was: ``content`` is None where there was none."""

    path: str
    content: bytes | None
    mode: int = 0o644
    owner: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, host: Host, path: str) -> _Kept:
        """What *path* is now."""
        content = host.read_bytes(path)
        if content is None:
            return cls(path, None)
        status = os.stat(host.path(path))
        return cls(path, content, status.st_mode & 0o7777, (status.st_uid, status.st_gid))

    def restore(self, host: Host) -> None:
        """Make it that again."""
        if self.content is not None:
            host.write(self.path, self.content, self.mode, self.owner)
        elif host.exists(self.path):
            os.unlink(host.path(self.path))


def _restore(host: Host, kept: Sequence[_Kept]) -> None:
    for file in kept:
        file.restore(host)


def _names_driver(line: str) -> bool:
    return bool(_FROM.search(line))


def install(host: Host, wish: DkmsWish) -> None:
    """Install driver and firmware of one build, and demand that the module was built.

    Raises Refused; a failed build never leaves the blacklist behind.
    """
    if not wish.sources.changes:
        apt.update(host)  # what is missing then shows in the installation's own message
    packages = [f"{DKMS_PACKAGE}={wish.dkms}", f"{FIRMWARE_PACKAGE}={wish.firmware}"]
    packages += [wish.headers] if wish.headers else []
    options = ["--allow-downgrades"] if _firmware_goes_back(host, wish.firmware) else []
    try:
        with initramfs.held(host) as path:
            apt.apt_get(host, "install", *options, *packages, path=path)
    except CommandFailed as error:
        raise Refused(f"{DKMS_PACKAGE} did not install: {error}{_build_log(host)}", _REMEDY) from error
    finally:
        driver_purge.lift_blacklist(host)
    if wish.kernel:
        demand_built(host, wish.kernel)


def _firmware_goes_back(host: Host, wanted: str) -> bool:
    """Whether dpkg takes the installed firmware for the newer one: old builds carry an epoch (ROCm 6.x)."""
    package = dpkg.packages(host).get(FIRMWARE_PACKAGE)
    if package is None or not package.installed:
        return False
    compared = ["dpkg", "--compare-versions", package.version, "gt", wanted]
    return host.run(compared, check=False).rc == 0


_REMEDY = "amdgpu_driver_policy: intree removes it again and repairs dpkg"


def demand_built(host: Host, release: str) -> None:
    """The DKMS module is there for kernel *release*, built now if need be. Raises Refused."""
    if amdgpu_module.on_disk(host, release).origin != amdgpu_module.DKMS:
        host.run(["dkms", "autoinstall", "-k", release], check=False, timeout=3600)
    if amdgpu_module.on_disk(host, release).origin != amdgpu_module.DKMS:
        raise Refused(f"DKMS did not build amdgpu for kernel {release}{_build_log(host)}", _REMEDY)


def _build_log(host: Host) -> str:
    """`` (log: first errors)`` of a failed build, or ""."""
    for version in dkms.read_versions(host):
        if version.failed_log:
            return f" ({version.failed_log}: {'; '.join(dkms.last_errors(host, version.failed_log))})"
    return ""
