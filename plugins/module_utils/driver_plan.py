# SPDX-License-Identifier: Apache-2.0
"""The driver layer's plan: in-tree (AMD's DKMS driver goes) or dkms (one good version of it comes)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from . import driver_purge, driver_state, modprobe_conf, paths
from .activation import Due, marked
from .amdgpu_module import DKMS, IN_TREE, NONE
from .change import Call, Change, WriteFile
from .driver_sources import REPOSITORY_PIN, Sources
from .driver_state import BLACKLIST, DKMS_PACKAGE, FIRMWARE_PACKAGE, DriverState
from .host import Host

LAYER = "amdgpu_driver"

# Pin-Priority below 0: apt never installs it, not as a dependency either (apt_preferences(5)).
PIN_AWAY = f"""\
# Managed by lemonade-deploy (role amdgpu_driver): the kernel's own amdgpu drives this GPU. AMD's DKMS
# driver would replace it at the next update; amdgpu_driver_policy: dkms takes this pin away.
Package: {DKMS_PACKAGE} {FIRMWARE_PACKAGE}
Pin: version *
Pin-Priority: -1
"""


def _repair(state: DriverState) -> list[Change]:
    """What must be put right before packages can change; finishing dpkg comes after AMD's are gone."""
    if not state.half_way:
        return []
    names = [name for name, package in state.packages.items() if package.unfinished]
    found = [*names, *state.unfinished]
    detail = f"unfinished: {', '.join(found)}" if found else ""
    if state.interrupted:
        detail = f"{detail}; dpkg was interrupted".lstrip("; ")
    stale = [tree.version for tree in state.trees if tree.broken]
    if stale:
        detail = f"{detail}; DKMS tree without its source: {', '.join(stale)}".lstrip("; ")
    return [Change(LAYER, "dpkg", "repair", detail, operations=(Call(driver_purge.repair_trees),))]


def _blacklist(state: DriverState) -> list[Change]:
    if state.blacklist is None:
        return []
    after = modprobe_conf.without_blacklist(state.blacklist)
    return [
        Change(
            LAYER,
            f"blacklist {BLACKLIST}",
            "remove",
            "left behind by a DKMS build that failed",
            before=state.blacklist,
            after=after,
            operations=(Call(driver_purge.lift_blacklist),),
        )
    ]


def intree_due(state: DriverState) -> Due:
    """What the in-tree plan needs at boot; the same before and while it is applied."""
    reasons = {
        DKMS: "AMD's DKMS module is loaded, the kernel's own is wanted",
        NONE: "amdgpu is not loaded",
    }
    reason = reasons.get(state.loaded.origin)
    return Due(initramfs=state.residue, reboot=(reason,) if reason else ())


def plan_intree(state: DriverState, firmware: Sequence[Change] = ()) -> list[Change]:
    """Repair, *firmware* that must be there before, purge, left-overs, pin. Pure.

    The caller has simulated the purge and planned the firmware.
    """
    changes = [*_repair(state), *firmware]
    names = sorted(state.packages)

    def purge_all(host: Host) -> None:
        firmware_files = driver_state.left_firmware(host)  # the packages' lists go with them
        driver_purge.purge(host, names)
        driver_purge.sweep(host, firmware_files)

    for number, name in enumerate(names):
        operations = (Call(purge_all),) if number == 0 else ()
        version = state.packages[name].version
        changes.append(Change(LAYER, f"package {name}", "purge", version, operations=operations))
    changes += _blacklist(state)
    if not names:
        changes += _left_overs(state)
    if state.half_way:
        changes[-1] = _then(changes[-1], Call(driver_purge.finish_dpkg))
    if state.has_apt and state.pin != PIN_AWAY:
        changes.append(
            Change(
                LAYER,
                "apt pin amdgpu-dkms",
                "write",
                "priority -1",
                before=state.pin,
                after=PIN_AWAY,
                operations=(WriteFile(paths.APT_PIN, PIN_AWAY),),
            )
        )
    return marked(changes, intree_due(state))


def _left_overs(state: DriverState) -> list[Change]:
    """What remained of packages that are gone already."""
    kernels = sorted({path.split("/")[3] for path in state.modules})
    found = (
        (state.hook, f"initramfs hook {driver_state.HOOK}", ""),
        (state.firmware, f"firmware {driver_state.FIRMWARE}", "outranks the distribution's"),
        (bool(state.modules), "DKMS modules", ", ".join(kernels)),
        (bool(state.trees), f"DKMS tree {driver_state.DKMS_TREE}", ", ".join(t.version for t in state.trees)),
    )
    sweep = (Call(driver_purge.sweep),)
    return [Change(LAYER, name, "remove", detail, operations=sweep) for there, name, detail in found if there]


def _then(change: Change, operation: Call) -> Change:
    return Change(
        change.layer,
        change.object,
        change.action,
        change.detail,
        change.before,
        change.after,
        (*change.operations, operation),
    )


@dataclass(frozen=True)
class DkmsWish:
    """What the dkms plan wants, after apt was asked.

    ``sources``: files of apt to write. ``dkms``/``firmware``: package versions of one build;
    ``module``: the module's version; ``headers``: the headers package of the running kernel where that
    stays and it is missing.
    ``kernel``: the release DKMS must have built for in this layer, None where that comes later.
    """

    dkms: str
    firmware: str
    module: str
    sources: Sources = field(default_factory=Sources)
    headers: str | None = None
    kernel: str | None = None


def installed_ok(state: DriverState, name: str, version: str) -> bool:
    """Whether *name* stands at *version*, finished."""
    package = state.packages.get(name)
    return package is not None and package.state == "installed" and package.version == version


def dkms_due(state: DriverState, wish: DkmsWish) -> Due:
    """What the dkms plan needs at boot."""
    loaded = state.loaded
    reasons = []
    if loaded.origin == NONE:
        reasons.append("amdgpu is not loaded")
    elif loaded.origin == IN_TREE:
        reasons.append("the kernel's own amdgpu is loaded, AMD's DKMS module is wanted")
    elif loaded.version != wish.module:
        reasons.append(f"amdgpu {loaded.version} is loaded, {wish.module} is wanted")
    changes = not all(
        installed_ok(state, name, version)
        for name, version in ((DKMS_PACKAGE, wish.dkms), (FIRMWARE_PACKAGE, wish.firmware))
    )
    return Due(initramfs=changes or state.blacklist is not None, reboot=tuple(reasons))


def plan_dkms(state: DriverState, wish: DkmsWish, steps: DkmsSteps) -> list[Change]:
    """Repair, switch the source, lift the pin, install. Pure; *steps* carries it out."""
    changes = _repair(state) + _sources(state, wish.sources, steps)
    changes += _packages(state, wish, steps)
    changes += _blacklist(state)
    if state.half_way:
        changes[-1] = _then(changes[-1], Call(driver_purge.finish_dpkg))
    return marked(changes, dkms_due(state, wish))


@dataclass(frozen=True)
class DkmsSteps:
    """The two operations of the dkms plan that touch apt."""

    switch: Call
    install: Call


def _sources(state: DriverState, sources: Sources, steps: DkmsSteps) -> list[Change]:
    """Keys, pin and sources; the first change carries the step that writes them all."""
    changes = [
        Change(LAYER, f"apt key {path}", "refresh", "AMD's key, by fingerprint") for path in sources.keys
    ]
    away = state.pin is not None and state.pin != REPOSITORY_PIN
    if away:
        detail = "it keeps AMD's driver away"
        after = sources.pin or ""
        changes.append(Change(LAYER, "apt pin amdgpu-dkms", "remove", detail, before=state.pin, after=after))
    if sources.pin is not None and state.pin != sources.pin:
        pin = Change(LAYER, "apt pin repo.radeon.com", "write", "priority 600", before="", after=sources.pin)
        changes.append(pin)
    elif sources.pin is None and state.pin is not None and not away:
        detail = "another pin does the same"
        changes.append(Change(LAYER, "apt pin repo.radeon.com", "remove", detail, before=state.pin, after=""))
    for path, text in sorted(sources.texts.items()):
        before = sources.before.get(path)
        action = "write" if before is None else "switch"
        changes.append(Change(LAYER, f"apt source {path}", action, before=before, after=text))
    if changes:
        changes[0] = _then(changes[0], steps.switch)
    return changes


def _packages(state: DriverState, wish: DkmsWish, steps: DkmsSteps) -> list[Change]:
    found = []
    if wish.headers:
        found.append(("kernel headers", "install", wish.headers))
    for name, version in ((DKMS_PACKAGE, wish.dkms), (FIRMWARE_PACKAGE, wish.firmware)):
        if not installed_ok(state, name, version):
            package = state.packages.get(name)
            action = "upgrade" if package is not None and package.installed else "install"
            found.append((f"package {name}", action, version))
    return [
        Change(LAYER, name, action, detail, operations=(steps.install,) if number == 0 else ())
        for number, (name, action, detail) in enumerate(found)
    ]
