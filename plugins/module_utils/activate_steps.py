# SPDX-License-Identifier: Apache-2.0
"""The two halves of activate: what is done before the boot, and what is demanded after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import (
    activation,
    amdgpu_module,
    boot_gate,
    driver_switch,
    grub,
    grub_script,
    initramfs,
    memory,
    paths,
    proof,
    trial,
    trial_evidence,
    trial_menu,
)
from .activation import Due
from .change import Change
from .host import Host
from .module import Refused
from .proof import ProofWish


@dataclass(frozen=True)
class Situation:
    """Everything activate decides by. ``reboot``: all reasons for one."""

    due: Due
    reboot: tuple[str, ...]
    default_release: str
    running: str
    stay: bool = False  # the running kernel stays, and GRUB would boot another one
    armed: str = ""  # a kernel that the next boot would try and nobody wants any more


def observed_reasons(host: Host, wish: ProofWish) -> list[str]:
    """Why a boot is needed, by what runs now."""
    reasons = []
    running = host.running_kernel()
    if running != wish.kernel:
        reasons.append(activation.kernel_reason(wish.kernel, running))
    loaded = amdgpu_module.read_loaded(host)
    if loaded.origin != wish.origin:
        reasons.append(f"the loaded amdgpu is {loaded.origin}, {wish.origin} is wanted")
    module = memory.ttm_module(wish.origin)
    limited = wish.pages is None or memory.active_pages(host, module) == wish.pages
    if wish.pages is not None and not limited and not memory.outranked(host, module, wish.pages):
        reasons.append(f"{module}.pages_limit is not yet {wish.pages}")
    return reasons


def look(host: Host, wish: ProofWish, pending: Sequence[Due]) -> Situation:
    """Marker, results of the earlier roles and what runs, put together."""
    running = host.running_kernel()
    dues = [activation.load(host), *pending]
    due = activation.union(activation.only_of(due, wish.kernel, running) for due in dues)
    menu = grub.read(host)
    if due.kernel is None and (wish.kernel != running or _unconfirmed(host, menu, running)):
        due = replace(due, kernel=wish.kernel)
    observed = observed_reasons(host, wish)
    reasons = tuple(due.reboot) or tuple(observed)
    default = menu.default_release() if menu else ""
    stay = bool(reasons) and _strays(host, menu, wish, running)
    return Situation(due, reasons, default, running, stay, _armed(menu, wish.kernel))


def _armed(menu: grub.Grub | None, wanted: str) -> str:
    """Release that an earlier run armed and did not boot, where it is not the one *wanted* now; else ""."""
    if menu is None or menu.env.get("next_entry") != trial_menu.TRIAL:
        return ""
    release = menu.next_release()
    return "" if release == wanted else release


def _strays(host: Host, menu: grub.Grub | None, wish: ProofWish, running: str) -> bool:
    """Whether the running kernel is wanted and GRUB boots another one, untested and with nothing behind it.

    So after an unattended upgrade, or where the running kernel was chosen at the menu. A boot on trial is
    none of it: that one is to end on the old kernel unless it is proven.
    """
    if menu is None or wish.kernel != running or trial_menu.marked(host) == running:
        return False
    default = menu.default_release()
    if default == running:
        return False
    return bool(default) or grub.entry_of(menu.menu, running) is not None


def _unconfirmed(host: Host, menu: grub.Grub | None, running: str) -> bool:
    """Whether this boot is a trial that nobody confirmed, though its marker is gone."""
    return menu is not None and trial_menu.marked(host) == running and menu.default_release() != running


def plan(situation: Situation) -> list[Change]:
    """What activate will do; the same for check mode and for a run."""
    changes = activation.plan(
        situation.due, reboot=situation.reboot, default_release=situation.default_release
    )
    if situation.armed:
        detail = f"{situation.armed} was to be tried at the next boot, and is not wanted any more"
        changes = [Change(activation.LAYER, "grub one-shot entry", "disarm", detail), *changes]
    if not situation.stay:
        return changes
    detail = (
        f"the running kernel {situation.running}; GRUB would boot {situation.default_release or 'another'}"
    )
    at = next(number for number, change in enumerate(changes) if change.object == "host")
    return [*changes[:at], Change(activation.LAYER, "grub default", "pin", detail), *changes[at:]]


def gate(host: Host, wish: ProofWish) -> None:
    """Refuse a boot into a kernel that is not whole or has not the wanted driver. Raises Refused."""
    if wish.kernel not in initramfs.installed_kernels(host):
        raise Refused(f"kernel {wish.kernel} is not installed", "run without --tags, or with kernel in them")
    _demand_module(host, wish)


def _demand_module(host: Host, wish: ProofWish) -> None:
    if wish.origin == amdgpu_module.DKMS:
        driver_switch.demand_built(host, wish.kernel)
    elif amdgpu_module.on_disk(host, wish.kernel).origin == amdgpu_module.NONE:
        raise Refused(
            f"kernel {wish.kernel} has no amdgpu module",
            f"install linux-modules-extra-{wish.kernel} (Ubuntu keeps the module there)",
        )


def prepare(
    host: Host,
    situation: Situation,
    wish: ProofWish,
    confirm_seconds: int,
    warn: Callable[[str], None] = lambda _text: None,
    made: list[Change] | None = None,
) -> list[Change]:
    """Rebuild the initramfs if due, and make the next boot the right one. Returns what was done.

    *made* takes each as it is done, for a caller that wants to tell it where a later one fails.
    *warn* is told what is no reason to stop. Raises Refused for a kernel that was tried often enough or
    that cannot be booted here, CommandFailed, OSError.
    """
    due, made = situation.due, [] if made is None else made
    changes = plan(situation)

    def done(action: str) -> None:
        made.extend(change for change in changes if change.action == action)

    if due.kernel is not None and situation.running != due.kernel and _used_up(host, due):
        told = trial_evidence.gather(host, due)
        trial.give_up(host)
        raise Refused(
            f"kernel {due.kernel} was booted {due.tries} times and never proved itself: "
            f"{situation.running} runs; {'; '.join(told)}",
            _try_again(due.kernel),
        )
    if situation.armed:
        trial.give_up(host)
        done("disarm")
    if due.kernel is not None and due.kernel != situation.running:
        trial.demand_time(confirm_seconds)
        gate(host, wish)
    elif situation.reboot and amdgpu_module.read_loaded(host).origin != wish.origin:
        _demand_module(host, wish)  # a boot alone would not bring it
    if due.initramfs:
        activation.save(host, due)
        initramfs.rebuild(host)
        done("rebuild")
        due = replace(due, initramfs=False)
        if due or situation.reboot:
            activation.save(host, due)
    if situation.reboot:
        if due.kernel is not None and due.kernel != situation.running:
            boot_gate.demand(host, due.kernel, wish.origin, warn)
        _next_boot(host, due, situation, confirm_seconds)
        done("pin")
    return made


def _used_up(host: Host, due: Due) -> bool:
    return due.tries >= activation.MAX_TRIES and due.tried != activation.boot_id(host)


def _try_again(release: str) -> str:
    return (
        f"choose another kernel with kernel_version or kernel_source (keep stays with this one), "
        f"or remove {paths.ACTIVATION_DUE} to try {release} again"
    )


def _next_boot(host: Host, due: Due, situation: Situation, confirm_seconds: int) -> None:
    """The marker comes first and is synced: it is what tells of the try, whatever becomes of it."""
    now = activation.boot_id(host)
    on_trial = due.kernel is not None and due.kernel != situation.running
    if on_trial and due.tried != now:
        due = replace(due, tries=due.tries + 1, tried=now)
    activation.save(host, replace(due, reboot=situation.reboot))
    if on_trial and due.kernel is not None:
        trial.arm(host, due.kernel, confirm_seconds)
    elif situation.stay:
        _stay(host, situation)


def _stay(host: Host, situation: Situation) -> None:
    state = grub.read(host)
    if state is None or grub.entry_of(state.menu, situation.running) is None:
        raise Refused(
            f"the reboot would take {situation.default_release}, as {grub.GRUB_CFG} has no entry for the "
            f"running kernel {situation.running}, which is to stay",
            "install its package again, or choose the other one with kernel_version",
        )
    if state.env.get("next_entry"):
        grub.clear_next(host)
    trial.pin(host, situation.running)


def prove(host: Host, wish: ProofWish, timeout: float) -> list[proof.Problem]:
    """The proof's problems (empty: proven)."""
    return proof.settle(host, wish, timeout)


def fallen(host: Host, wish: ProofWish) -> tuple[str, str] | None:
    """Where another kernel runs than the one on trial: what is known of that, and what to do."""
    due = activation.load(host)
    running = host.running_kernel()
    if due.kernel is None or due.kernel != wish.kernel or running == due.kernel:
        return None
    told = "; ".join(trial_evidence.gather(host, due))
    trial.give_up(host)
    left = activation.MAX_TRIES - due.tries
    remedy = (
        "the same command tries it once more"
        if left > 0
        else f"it is not tried again: {_try_again(due.kernel)}"
    )
    return f"kernel {due.kernel} did not prove itself, {running} runs again: {told}", remedy


def on_trial(host: Host) -> bool:
    """Whether this boot is a trial and GRUB's default is another kernel: the next boot is the old one."""
    state = grub.read(host)
    return _unconfirmed(host, state, host.running_kernel())


def confirm(host: Host, due: Due, wish: ProofWish) -> list[Change]:
    """After the proof: the proven kernel becomes the default, and nothing is due any more.

    Raises Refused where the boot was not the trial that was armed: then nothing watched over it, and what
    booted it instead would win over a new default as well.
    """
    done = []
    state = grub.read(host)
    if state is not None and due.kernel is not None and due.kernel == wish.kernel:
        if state.default_release() != due.kernel:
            if due.tries and trial_menu.marked(host) != due.kernel:
                raise Refused(
                    f"kernel {due.kernel} runs and is as wanted, but not from its trial entry "
                    f"({trial_menu.CMDLINE} has no {trial_menu.MARK}): something else made GRUB boot it",
                    f"see what sets `default` in {grub.GRUB_CFG} and {grub_script.CUSTOM}; if you chose it "
                    f"at the menu: `grub-set-default '{grub.entry_of(state.menu, due.kernel)}'`, then run "
                    "again",
                )
            done.append(Change(activation.LAYER, "grub default", "promote", due.kernel))
        trial.promote(host, due.kernel)
    activation.clear(host)
    return done


def shown(host: Host) -> dict[str, Any]:
    """The parts of the result that tell what runs."""
    return {
        "gpu": proof.public(proof.read(host)),
        "kernel": host.running_kernel(),
        "boot_id": activation.boot_id(host),
    }
