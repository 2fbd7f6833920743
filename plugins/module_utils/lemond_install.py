# SPDX-License-Identifier: Apache-2.0
"""lemond's own installation of vLLM: POST /v1/install, its traps, and what is on the disk afterwards.

Its answers cannot be taken at their word (tried on Debian's 2026.39; server.cpp:7844-7940):

- HTTP 200 with an ``action`` means that nothing was installed: the kernel lacks the CWSR fix.
- "complete" is also said where another version is there and GitHub does not answer a probe.
- Two installations at once, such as that of a load after a restart, destroy each other's files.
- Who hangs up cancels the download; it then begins anew.

So a process of its own holds the connection, only while lemond does not install already, and what
counts is ``version.txt``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import bundle, bundle_layout, disk, lemond_install_job, vllm_home
from .bundle_plan import package_changes
from .change import Call, Change
from .host import Host
from .lemond_install_job import State
from .lock import Release
from .module import Refused

LAYER = "vllm_rocm"
TMPDIR = "/var/cache/lemonade/tmp"  # as the unit sets it
OVERHEAD, RESERVE = 1.06, 256 << 20
GRACE = 60.0  # s beyond its time-out in which a job must have told its end
# What lemond says, and what to do about it. The first that is found counts.
REMEDIES = (
    (
        "offline mode",
        "Set lemonade_server_offline: false, or vllm_rocm_installer: kit, which needs no internet here.",
    ),
    (
        "Automatic backend install is disabled",
        "A config.json of lemond sets no_fetch_executables: remove it there (`lemonade config`).",
    ),
    (
        "HTTP error 404",
        "The release is not there: choose another one with vllm_rocm_release.",
    ),
    (
        "extract",
        "lemond unpacks with tar, and gives up after 300 s; a full disk looks the same. See `df` and "
        "`journalctl -u lemond`, or set vllm_rocm_installer: kit.",
    ),
)


@dataclass(frozen=True)
class Wanted:
    """What is to be there. ``timeout`` in seconds for the whole installation."""

    release: Release
    timeout: float
    packages: tuple[str, ...] = ()


class More(Exception):
    """The installation goes on; ask again."""

    def __init__(self, state: State) -> None:
        self.state = state
        super().__init__(state.text())


def plan(host: Host, wanted: Wanted, seconds: float) -> list[Change]:
    """Changes by what is on the disk; the installation is given *seconds* until it raises More."""
    changes = package_changes(bundle.missing_packages(host, wanted.packages))
    if faults(host, wanted.release):
        there = vllm_home.lemond_version(host)
        detail = f"{wanted.release.tag}: {wanted.release.size / 1e6:,.0f} MB by lemond"
        detail += f", in place of {there}" if there and there != wanted.release.tag else ""
        operation = Call(lambda target: install(target, wanted, seconds))
        changes.append(Change(LAYER, "bundle", "install", detail, operations=(operation,)))
    return changes


def faults(host: Host, release: Release) -> list[str]:
    """Why what lemond has installed is not *release*; empty where it is."""
    version, folder = vllm_home.lemond_version(host), vllm_home.lemond_folder(host)
    if version != release.tag:
        return [f"{folder} holds {version or 'nothing'}"]
    return bundle_layout.missing(host.path(folder), release.family)


def install(host: Host, wanted: Wanted, seconds: float) -> None:
    """Have lemond install the release. Raises More, Refused."""
    if not vllm_home.by_lemond(host):
        raise Refused(
            "lemond on this host is not set up to install vLLM itself.",
            "Run the role lemonade_server, which sets its vllm.rocm_bin (`-t lemonade_server`).",
        )
    state = lemond_install_job.read(host, wanted.release.tag)
    if state is None:
        check_space(host, wanted.release)
        lemond_install_job.start(host, wanted.release.tag, wanted.timeout)
    state = lemond_install_job.wait(host, wanted.release.tag, seconds)
    if state.end is None:
        raise More(state)
    lemond_install_job.forget(host)
    judge(host, wanted.release, state)


def judge(host: Host, release: Release, state: State) -> None:
    """Raises Refused unless the release is there, with what lemond said about it."""
    end = state.end or {}
    if "action" in end:
        raise Refused(
            "lemond has installed nothing: the kernel lacks the CWSR fix, it says, and points to "
            f"{end['action']}.",
            "Run the roles kernel and activate; `lemonade-deploy doctor` tells what is missing.",
        )
    if "error" in end:
        said = str(end["error"]).replace("\n", " ")
        remedy = next((text for key, text in REMEDIES if key in said), "See `journalctl -u lemond`.")
        raise Refused(f"lemond could not install {release.tag}: {said} ({state.text()}).", remedy)
    wrong = faults(host, release)
    if wrong:
        raise Refused(
            f"lemond says that {release.tag} is installed, but {'; '.join(wrong)}.",
            "lemond keeps what it has where GitHub does not answer its probe (see `journalctl -u lemond`): "
            f"let this host reach it, or remove {vllm_home.lemond_folder(host)} and run again.",
        )


def check_space(host: Host, release: Release) -> None:
    """lemond says only "Failed to extract archive" for a full disk. Raises Refused, with numbers."""
    tree = release.tree.size if release.tree else 4 * release.size
    parts = release.size + max(asset.size for asset in release.assets)
    places = {TMPDIR: parts, vllm_home.lemond_folder(host): int(tree * OVERHEAD)}
    for path, need in places.items():
        device = os.stat(host.path(disk.nearest(host, path))).st_dev
        same = [other for other in places if os.stat(host.path(disk.nearest(host, other))).st_dev == device]
        need = sum(places[other] for other in same) + RESERVE
        free = disk.free_bytes(host, path)
        if free < need:
            raise Refused(
                f"Not enough disk for lemond to install {release.tag}: archive, its last part and the tree "
                f"need {need >> 20:,} MiB at {path}, {free >> 20:,} MiB are free.",
                "Free some space there; vllm_rocm_installer: kit needs room for the tree only.",
            )
