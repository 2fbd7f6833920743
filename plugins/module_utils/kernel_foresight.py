# SPDX-License-Identifier: Apache-2.0
"""What would stop the kernel layer, asked before any layer has changed the host.

The driver goes first, so a kernel that then cannot come leaves the box with neither. Everything here
only reads; apt plans on dpkg's state as it will be once AMD's packages are gone and dpkg is repaired.
"""

from __future__ import annotations

import re

from . import boot_gate, boot_loader, driver_purge, driver_state, grub, kernel_hold, kernel_plan
from .decision import Decision
from .driver_choice import DKMS, INTREE
from .host import Host
from .kernel_plan import KernelState, KernelWish
from .refusal import Refused

_MENU_TIMEOUT = 600  # s, as for update-grub: os-prober looks at every disk

_PROGRESS = re.compile("(Sourcing|Generating|Found|Adding) ")  # what it tells of all that goes well


def demand(host: Host, decision: Decision, *, menu: bool) -> None:
    """Refuse what the later layers would refuse. *menu*: GRUB's menu is made, to nowhere, as well.

    Raises Refused, CommandFailed, OSError.
    """
    choice = decision.kernel
    stays = choice.release == host.running_kernel()  # only its modules are to come: nothing is tried
    if not stays:
        boot_loader.demand(host)
        boot_gate.demand_root(host, choice.release)
    wish = KernelWish(
        choice.release,
        choice.packages,
        decision.driver.origin == DKMS,
        choice.debs,
        choice.target,
        choice.apt_source,
    )
    driver = driver_state.read(host)
    leaves = decision.driver.policy == INTREE
    if leaves:
        driver_purge.demand(host, driver)
    state = _state(host, wish)
    if not stays:
        kernel_plan.demand_grub(state)
    if not state.installed or state.missing:
        kernel_plan.demand_space(host)
        kernel_plan.simulate(
            host,
            wish,
            state.missing,
            state.held,
            gone=driver_state.may_go if leaves and driver.packages else None,
            repaired=driver.half_way,
        )
    if menu and not stays:
        _demand_menu(host, state.running)


def _state(host: Host, wish: KernelWish) -> KernelState:
    return KernelState(
        running=host.running_kernel(),
        installed=kernel_plan.is_installed(host, wish),
        grub=grub.read(host),
        missing=kernel_plan.missing_packages(host, wish, kernel_plan.installed(host)),
        held=kernel_hold.read(host),
    )


def _demand_menu(host: Host, running: str) -> None:
    """grub-mkconfig must end well and name the running kernel; what it prints is written nowhere."""
    done = host.run(["grub-mkconfig"], check=False, timeout=_MENU_TIMEOUT)
    remedy = (
        "see `sudo grub-mkconfig >/dev/null`, repair what it names in /etc/grub.d or /etc/default/grub, "
        "then run again; or set kernel_source: keep"
    )
    if done.rc != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not _PROGRESS.match(line)]
        said = "; ".join(lines[-3:]) or "a script of /etc/grub.d fails without a word"
        raise Refused(f"GRUB's menu cannot be made (grub-mkconfig ends with code {done.rc}: {said})", remedy)
    if grub.entry_of(grub.parse_menu(done.stdout), running) is None:
        raise Refused(
            f"the menu that grub-mkconfig makes has no entry for the running kernel {running}: no way back",
            remedy,
        )
