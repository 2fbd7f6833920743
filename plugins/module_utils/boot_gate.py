# SPDX-License-Identifier: Apache-2.0
"""What must be true of a kernel before the host is rebooted into it, seen from the running one.

The drivers that the box lives on now (root file system, its storage, the card of the default route)
must be there in the new kernel, those of the root also in its initrd; the initrd must be whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from . import amdgpu_module, dkms, initramfs, initrd_archive, kernel_modules, kernels, mounts
from .host import Host
from .kernel_modules import Modules
from .refusal import Refused

Warn = Callable[[str], None]
_PERSONALITIES = {"raid4": "raid456", "raid5": "raid456", "raid6": "raid456"}
_KINDS = {
    "DEVTYPE=wireguard": "wireguard",
    "DEVTYPE=bridge": "bridge",
    "DEVTYPE=bond": "bonding",
    "DEVTYPE=vlan": "8021q",
}
_STAY = "the running kernel stays; choose another with kernel_version or kernel_source"


class Needs(NamedTuple):
    """Module names: of the root file system and its storage, and of each default route's network card."""

    root: tuple[str, ...]
    cards: dict[str, str]  # interface → module
    modaliases: dict[str, str]  # interface → what the card says it is


def needs(host: Host) -> Needs:
    """What the running system uses."""
    mount = mounts.holding(host, "/")
    root = [] if mount is None else [mount.type.replace("-", "_")]
    for device in mounts.stack(host, mount) if mount else []:
        root += mounts.drivers_above(host, device)
        if host.is_dir(f"{device}/dm"):
            root += ["dm_mod", *_targets(host.value(f"{device}/dm/uuid") or "")]
        level = host.value(f"{device}/md/level")
        if level:
            root += ["md_mod", _PERSONALITIES.get(level, level)]
    cards, modaliases = {}, {}
    defaults = default_interfaces(host)
    cards.update(_virtual(host, defaults))
    for interface in _carrying(host, defaults):
        device = f"/sys/class/net/{interface}/device"
        module = host.readlink(f"{device}/driver/module")
        if module:
            cards[interface] = kernel_modules.name_of(module)
        alias = host.value(f"{device}/modalias")
        if alias:
            modaliases[interface] = alias
    return Needs(tuple(dict.fromkeys(root)), cards, modaliases)


def _targets(uuid: str) -> list[str]:
    """Device mapper targets with a module of their own, by the prefix of dm/uuid."""
    if uuid.startswith("CRYPT-VERITY"):
        return ["dm_verity"]
    if uuid.startswith("CRYPT-INTEGRITY"):
        return ["dm_integrity"]
    if uuid.startswith("CRYPT-"):
        return ["dm_crypt"]
    return ["dm_multipath"] if uuid.startswith("mpath-") else []


def routes(host: Host) -> list[tuple[str, bool]]:
    """(interface, whether it is a default route) of /proc/net/route and /proc/net/ipv6_route."""
    found = []
    for line in (host.read("/proc/net/route") or "").splitlines()[1:]:
        words = line.split()
        if len(words) >= 8:
            found.append((words[0], words[1] == "00000000" and words[7] == "00000000"))
    for line in (host.read("/proc/net/ipv6_route") or "").splitlines():
        words = line.split()
        if len(words) == 10 and words[9] != "lo":
            found.append((words[9], words[0] == "0" * 32 and words[1] == "00"))
    return found


def default_interfaces(host: Host) -> list[str]:
    """Interfaces of the default routes."""
    return list(dict.fromkeys(name for name, default in routes(host) if default))


def _virtual(host: Host, interfaces: list[str]) -> dict[str, str]:
    """Modules of tunnels, bridges, bonds and VLANs, by the kernel's own name for the kind (DEVTYPE)."""
    found = {}
    for interface in interfaces:
        uevent = (host.read(f"/sys/class/net/{interface}/uevent") or "").splitlines()
        module = next((_KINDS[line] for line in uevent if line in _KINDS), None)
        if module:
            found[interface] = module
    return found


def _carrying(host: Host, defaults: list[str]) -> list[str]:
    """The cards beneath *defaults*. A tunnel has none beneath it: then all that any route goes through."""
    cards = _hardware(host, defaults)
    real = [name for name in cards if host.exists(f"/sys/class/net/{name}/device")]
    if real or not defaults:
        return real
    others = _hardware(host, list(dict.fromkeys(name for name, _default in routes(host))))
    return [name for name in others if host.exists(f"/sys/class/net/{name}/device")]


def _hardware(host: Host, interfaces: list[str]) -> list[str]:
    """The cards beneath bridges, bonds and VLANs (their ``lower_*`` links)."""
    cards: list[str] = []
    for interface in interfaces:
        folder = f"/sys/class/net/{interface}"
        lower = [name[len("lower_") :] for name in host.listdir(folder) if name.startswith("lower_")]
        found = _hardware(host, lower) if lower else [interface]
        cards += [name for name in found if name not in cards]
    return cards


def demand_root(host: Host, release: str) -> None:
    """Refuse, before anything is installed, what can never find its root. Raises Refused."""
    mount = mounts.holding(host, "/")
    kernel = kernels.parse(release)
    if mount is not None and mount.type == "zfs" and kernel is not None and kernel.flavour == "mainline":
        raise Refused(
            f"the root file system is ZFS, and mainline builds like {release} have no ZFS.",
            "set kernel_source to one of the distribution's (hwe, oem, distro), or kernel_source: keep",
        )


def demand(host: Host, release: str, origin: str, warn: Warn) -> None:
    """Refuse a boot into a kernel that would not find its root, its network or the wanted driver.

    *warn* is told of DKMS modules that are not built for it. Raises Refused.
    """
    running, target = (kernel_modules.read(host, name) for name in (host.running_kernel(), release))
    wanted = needs(host)
    unbuilt = others_unbuilt(host, release)
    _demand_drivers(host, wanted, running, target, unbuilt)
    _demand_initrd(host, release, origin, wanted, running, target)
    for name, version in unbuilt:
        warn(
            f"DKMS module {name} {version} is built for {running.release}, but not for {release}: "
            "what needs it will be missing there"
        )


def others_unbuilt(host: Host, release: str) -> list[tuple[str, str]]:
    """(module, version) of DKMS's other modules that the running kernel has and *release* has not."""
    found = []
    running = host.running_kernel()
    for name in host.listdir(dkms.TREE):
        folders = [f"{dkms.TREE}/{name}/{version}" for version in host.listdir(f"{dkms.TREE}/{name}")]
        here = [path for path in folders if host.glob(f"{path}/{running}/*/module/*.ko*")]
        there = [path for path in folders if host.glob(f"{path}/{release}/*/module/*.ko*")]
        if name != dkms.MODULE and here and not there:
            found.append((name, here[-1].rpartition("/")[2]))
    return found


def _named(names: list[str], unbuilt: list[tuple[str, str]]) -> str:
    ours = [f"{name} {version}" for name, version in unbuilt if set(names) & {name.replace("-", "_")}]
    return f" (DKMS has not built {', '.join(ours)} for it)" if ours else ""


def _demand_drivers(
    host: Host, wanted: Needs, running: Modules, target: Modules, unbuilt: list[tuple[str, str]]
) -> None:
    if not target.known:
        raise Refused(
            f"kernel {target.release} has neither modules.dep nor modules.builtin",
            f"`depmod -a {target.release}`, or install its modules again",
        )
    root = kernel_modules.lacking(wanted.root, running, target)
    if root:
        raise Refused(
            f"kernel {target.release} has no {', '.join(root)}, which the root file system of this host is on"
            f"{_named(root, unbuilt)}",
            _STAY,
        )
    for interface, module in wanted.cards.items():
        if not kernel_modules.lacking([module], running, target):
            continue
        alias = wanted.modaliases.get(interface, "")
        if alias and kernel_modules.for_alias(host, target.release, alias):
            continue  # another driver takes the card there
        raise Refused(
            f"kernel {target.release} has no {module}, which drives {interface} (the default route)"
            f"{_named([module], unbuilt)}",
            f"install its package (linux-modules-extra-{target.release}) or its DKMS module; else {_STAY}",
        )


def _demand_initrd(
    host: Host, release: str, origin: str, wanted: Needs, running: Modules, target: Modules
) -> None:
    image = initramfs.image(release)
    again = f"`update-initramfs -c -k {release}` (is /boot full?), then run again"
    if not host.exists(image):
        raise Refused(f"kernel {release} has no {image}", again)
    try:
        names = initrd_archive.names(host.path(image))
    except initrd_archive.Damaged as damage:
        raise Refused(f"{image} is not whole: {damage}", again) from None
    if "init" not in names:
        raise Refused(f"{image} has no /init: nothing would mount the root file system", again)
    held = {
        kernel_modules.name_of(name): name for name in names if name.startswith(f"lib/modules/{release}/")
    }
    needed = [name for name in wanted.root if name in target.files and (name in running or not running.known)]
    absent = [name for name in needed if name not in held]
    if absent:
        raise Refused(
            f"{image} lacks {', '.join(absent)}, which the root file system of this host is on",
            f"name them in /etc/initramfs-tools/modules, then {again}",
        )
    amdgpu = held.get("amdgpu", "")
    if amdgpu and ("/updates/dkms/" in amdgpu) != (origin == amdgpu_module.DKMS):
        raise Refused(f"{image} holds another amdgpu than the wanted one ({amdgpu})", again)
