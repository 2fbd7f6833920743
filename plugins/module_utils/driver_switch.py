# SPDX-License-Identifier: Apache-2.0
"""The dkms side: which apt source, which version, and an installation that can't strand a box."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass

from . import (
    amdgpu_module,
    apt,
    apt_sources,
    dkms,
    dkms_kernels,
    dpkg,
    driver_purge,
    driver_releases,
    initramfs,
    openpgp,
    paths,
)
from .change import Call
from .distribution import read_distribution
from .driver_plan import DkmsSteps, DkmsWish, installed_ok
from .driver_state import DKMS_PACKAGE, FIRMWARE_PACKAGE, DriverState
from .host import CommandFailed, Host
from .module import Refused

KEY_URL = "https://repo.radeon.com/rocm/rocm.gpg.key"
REPOSITORY_URL = "https://repo.radeon.com/amdgpu/{}/ubuntu"
NEW_SOURCE = f"{apt_sources.PARTS}/lemonade-deploy-amdgpu.sources"
_FROM = re.compile(r"/amdgpu/(latest|\d+(?:\.\d+)*)/ubuntu/")
_TIMEOUT = 60  # s


@dataclass(frozen=True)
class Request:
    """What the decision and the role ask for.

    ``version``: the repository's; "" leaves what is installed. ``kernel``: release that will run.
    """

    version: str
    exact: bool
    fingerprint: str
    kernel: str


def plan_sources(host: Host, request: Request) -> tuple[dict[str, str], dict[str, str | None]]:
    """(new text, old text) of the source files that must change; empty where all are good.

    Reads the key's server only where no source of AMD's driver exists. Raises Refused.
    """
    sources = apt_sources.read_sources(host)
    enabled = [entry for entry in apt_sources.driver_entries(sources) if entry.enabled]
    if not apt_sources.active(enabled):
        return {NEW_SOURCE: _new_source(host, request)}, {NEW_SOURCE: None}
    planned: dict[str, str] = {}
    for path, text in sources.items():
        old = [
            entry
            for entry in enabled
            if entry.path == path
            and not driver_releases.satisfies(
                apt_sources.version(entry) or "", request.version, request.exact
            )
        ]
        if old:
            planned[path] = apt_sources.with_versions(text, old, request.version)
    return planned, {path: sources[path] for path in planned}


def _new_source(host: Host, request: Request) -> str:
    distribution = read_distribution(host)
    suite = apt_sources.expected_suite(distribution.id, distribution.version)
    if suite is None:
        raise Refused(
            f"AMD's driver repository has no suite for {distribution.name}",
            "use amdgpu_driver_policy: intree, or add a source for it by hand",
        )
    key = _fetch_key(request.fingerprint)
    indented = "\n".join(f" {line}" if line.strip() else " ." for line in key.strip().splitlines())
    return (
        "# Managed by lemonade-deploy (role amdgpu_driver)\n"
        "Types: deb\n"
        f"URIs: {REPOSITORY_URL.format(request.version)}\n"
        f"Suites: {suite}\n"
        "Components: main\n"
        "Architectures: amd64\n"
        f"Signed-By:\n{indented}\n"
    )


def _fetch_key(fingerprint: str) -> str:
    """AMD's key as ASCII armour, judged by its fingerprint. Raises Refused."""
    try:
        with urllib.request.build_opener().open(KEY_URL, timeout=_TIMEOUT) as answer:
            data: bytes = answer.read(1_000_000)
        found = [key.fingerprint for key in openpgp.read_keys(data)]
    except (urllib.error.URLError, openpgp.Unreadable, TimeoutError) as error:
        raise Refused(f"AMD's signing key cannot be had from {KEY_URL}: {error}") from error
    wanted = fingerprint.replace(" ", "").upper()
    if wanted not in found or data[:1] != b"-":
        raise Refused(
            f"{KEY_URL} answers with the key {', '.join(found)}, expected {wanted}",
            "check amdgpu_driver_repo_key_fingerprint against AMD's documentation",
        )
    return data.decode("ascii", "strict")


def make_wish(host: Host, state: DriverState, request: Request) -> DkmsWish:
    """Ask apt (privately) what the planned sources offer. Raises Refused with what is wrong."""
    if not request.version:
        return _as_installed(state)
    planned, before = plan_sources(host, request)
    overlay = {**planned, paths.APT_PIN: ""}
    with apt.PrivateApt(host, sources=overlay, skip_amd=False) as private:
        found = None if planned else _installed_or_listed(private, state, request)
        if found is None:
            errors = private.update()
            found = _choose(private, request, errors)
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
        sources=planned,
        before=before,
        headers=headers if missing else None,
        kernel=request.kernel if stays else None,
    )


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
    return DkmsWish(versions[0], versions[1], driver_releases.module_version(versions[0]))


def _installed_or_listed(
    private: apt.PrivateApt, state: DriverState, request: Request
) -> tuple[str, str] | None:
    """What is installed where that will do, else what the host's own lists offer; None: ask the server."""
    dkms_package, firmware = state.packages.get(DKMS_PACKAGE), state.packages.get(FIRMWARE_PACKAGE)
    if dkms_package and firmware and installed_ok(state, DKMS_PACKAGE, dkms_package.version):
        known = driver_releases.by_module(driver_releases.module_version(dkms_package.version))
        good = known is not None and driver_releases.satisfies(known.repository, request.version)
        same = driver_releases.build(dkms_package.version) == driver_releases.build(firmware.version)
        if good and same and not request.exact and installed_ok(state, FIRMWARE_PACKAGE, firmware.version):
            return dkms_package.version, firmware.version
    try:
        return _choose(private, request, [])
    except Refused:
        return None  # the lists may only be old


def _choose(private: apt.PrivateApt, request: Request, errors: list[str]) -> tuple[str, str]:
    """Versions of driver and firmware, from one build of the wanted repository. Raises Refused."""
    reason = "; ".join(errors)
    candidate = private.candidate(DKMS_PACKAGE)
    if candidate is None or not candidate.uri:  # the installed one alone is in no repository
        raise Refused(
            f"AMD's repository amdgpu/{request.version} offers no {DKMS_PACKAGE}"
            + (f": {reason}" if reason else ""),
            "see https://repo.radeon.com/amdgpu/ for the versions there are, and amdgpu_driver_repo_version",
        )
    origin = _FROM.search(candidate.uri)
    if origin is None or not driver_releases.satisfies(origin[1], request.version, request.exact):
        raise Refused(
            f"apt would take {DKMS_PACKAGE} from {candidate.uri}, not from amdgpu/{request.version}"
            + (f": {reason}" if reason else ""),
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
    """Write the sources and update apt; where that fails every file goes back. Raises Refused."""
    for path, text in wish.sources.items():
        host.write(path, text)
    errors = [line for line in apt.update(host) if _names_driver(line)]
    if not errors:
        return
    for path, old in wish.before.items():
        if old is None:
            os.unlink(host.path(path))
        else:
            host.write(path, old)
    apt.update(host)  # the lists of the old sources come back; its errors were there before us
    raise Refused(
        f"apt cannot use the new source, so every file went back: {'; '.join(errors)}",
        "see https://repo.radeon.com/amdgpu/ for the versions there are, and amdgpu_driver_repo_version",
    )


def _names_driver(line: str) -> bool:
    return bool(_FROM.search(line))


def install(host: Host, wish: DkmsWish) -> None:
    """Install driver and firmware of one build, and demand that the module was built.

    Raises Refused; a failed build never leaves the blacklist behind.
    """
    if not wish.sources:
        apt.update(host)  # what is missing then shows in the installation's own message
    packages = [f"{DKMS_PACKAGE}={wish.dkms}", f"{FIRMWARE_PACKAGE}={wish.firmware}"]
    packages += [wish.headers] if wish.headers else []
    try:
        with initramfs.held(host) as path:
            apt.apt_get(host, "install", "--allow-downgrades", *packages, path=path)
    except CommandFailed as error:
        raise Refused(f"{DKMS_PACKAGE} did not install: {error}{_build_log(host)}", _REMEDY) from error
    finally:
        driver_purge.lift_blacklist(host)
    if wish.kernel:
        demand_built(host, wish.kernel)


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
