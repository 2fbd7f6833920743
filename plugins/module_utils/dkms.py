# SPDX-License-Identifier: Apache-2.0
"""DKMS's state of the amdgpu module, read from its tree (never from ``dkms status`` text)."""

from __future__ import annotations

import re
from typing import NamedTuple

from .host import Host

TREE = "/var/lib/dkms"
MODULE = "amdgpu"
# "DKMS make.log for amdgpu-V for kernel K (x86_64)"; since 3.2 "DKMS (dkms-3.2.2) make.log for amdgpu/V …".
_BUILT_FOR = re.compile(r"^DKMS (?:\(\S+\) )?make\.log for \S+ for kernel (\S+)", re.MULTILINE)

_ERROR = re.compile(r"^.*(?:\berror:|\*\*\* ).*$", re.MULTILINE | re.IGNORECASE)


class Version(NamedTuple):
    """One version below /var/lib/dkms/amdgpu.

    ``built``: kernels with a built module; ``installed``: those whose module dkms also put into
    /lib/modules. ``broken``: the source or its dkms.conf is gone, so every dkms command on it fails.
    ``failed_log``: log of a build that did not end in a module, ``failed_kernel`` what it was for,
    ``failed_why`` the first error in it.
    """

    version: str
    path: str
    built: tuple[str, ...]
    installed: tuple[str, ...]
    broken: bool
    failed_log: str | None = None
    failed_kernel: str | None = None
    failed_why: str | None = None


def _built(host: Host, folder: str) -> list[str]:
    modules = host.glob(f"{folder}/*/*/module/{MODULE}.ko*")
    return sorted({path[len(folder) + 1 :].split("/")[0] for path in modules})


def _installed(host: Host, module: str, version: str, kernels: list[str]) -> list[str]:
    """Kernels for which dkms's own link (kernel-<release>-<arch>) points at this version."""
    linked = []
    for name in host.listdir(f"{TREE}/{module}"):
        target = host.readlink(f"{TREE}/{module}/{name}") if name.startswith("kernel-") else None
        parts = (target or "").split("/")
        if len(parts) >= 3 and parts[-3] == version:
            linked.append(parts[-2])
    present = (k for k in kernels if host.glob(f"/lib/modules/{k}/updates/dkms/{MODULE}.ko*"))
    return sorted({*linked, *present})


def _has_source(host: Host, folder: str) -> bool:
    """Whether dkms.conf is there; ``source`` is a link that names an absolute path on the host."""
    target = host.readlink(f"{folder}/source")
    source = target if target is not None and target.startswith("/") else f"{folder}/source"
    return host.exists(f"{source}/dkms.conf")


def _failed_build(host: Host, folder: str, built: list[str]) -> tuple[str | None, str | None]:
    """(log, kernel) of a failed build: dkms leaves its build folder only then."""
    for log in (f"{folder}/build/make.log", *host.glob(f"{folder}/*/*/log/make.log")):
        text = host.read(log)
        if text is None:
            continue
        match = _BUILT_FOR.search(text)
        # Without the header the path tells: <version>/<kernel>/<arch>/log/make.log.
        beside = log[len(folder) + 1 :].split("/")[0]
        kernel = match[1] if match else (None if beside == "build" else beside)
        if kernel is None or kernel not in built:
            return log, kernel
    return None, None


def last_errors(host: Host, log: str, limit: int = 3) -> list[str]:
    """The first lines of a build log that a compiler or make marked as errors, to show to people."""
    found = _ERROR.findall(host.read(log) or "")
    return [line.strip()[:200] for line in found[:limit]]


def read_versions(host: Host, module: str = MODULE) -> list[Version]:
    """All versions of a module that DKMS knows, by name; empty without DKMS."""
    versions = []
    for name in host.listdir(f"{TREE}/{module}"):
        folder = f"{TREE}/{module}/{name}"
        if name.startswith("kernel-") or name == "original_module" or not host.is_dir(folder):
            continue
        built = _built(host, folder)
        log, kernel = _failed_build(host, folder, built)
        errors = last_errors(host, log, 1) if log else []
        versions.append(
            Version(
                version=name,
                path=folder,
                built=tuple(built),
                installed=tuple(_installed(host, module, name, built)),
                broken=not _has_source(host, folder),
                failed_log=log,
                failed_kernel=kernel,
                failed_why=errors[0] if errors else None,
            )
        )
    return versions
