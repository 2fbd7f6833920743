# SPDX-License-Identifier: Apache-2.0
"""Which amdgpu driver a box is to run, and from which repository. Pure."""

from __future__ import annotations

from typing import NamedTuple

from . import amdgpu_module as kernel_module
from . import apt_sources, driver_releases, states
from .facts import Facts
from .kernel_choice import Mainline
from .refusal import Refused

INTREE = "intree"
DKMS = "dkms"


class Wishes(NamedTuple):
    """The variables that steer the decision, with their defaults."""

    policy: str = "auto"  # auto, intree, dkms
    repository_version: str = driver_releases.DEFAULT_VERSION
    repository_exact: bool = False
    kernel_source: str = "auto"  # auto, distro, oem, hwe, backports, mainline, keep
    kernel_version: str = ""
    mainline: Mainline = Mainline()
    release: str = ""
    gtt_gib: str = "auto"


class Driver(NamedTuple):
    """Which amdgpu module is wanted, and the state the box was found in."""

    policy: str
    origin: str
    state: str


class Repository(NamedTuple):
    """AMD's driver repository: a minimum version, or the very one."""

    version: str
    exact: bool


def choose_driver(facts: Facts, wishes: Wishes) -> tuple[Driver, str]:
    """The driver to run and why."""
    state = states.classify(facts)
    if wishes.policy == INTREE:
        why = "the kernel's own driver: amdgpu_driver_policy is intree"
        return Driver(INTREE, kernel_module.IN_TREE, state), why
    if wishes.policy == DKMS:
        return Driver(DKMS, kernel_module.DKMS, state), "AMD's DKMS driver: amdgpu_driver_policy is dkms"
    apus = [gpu for gpu in facts.gpus if gpu.gfx.startswith("gfx115")]
    if apus:
        why = f"the kernel's own driver: AMD advises it on {apus[0].gfx} (ROCm#5724, #6146)"
        return Driver(INTREE, kernel_module.IN_TREE, state), why
    if state == states.DKMS_GOOD:
        return Driver(DKMS, kernel_module.DKMS, state), "AMD's DKMS driver runs and works: it stays"
    return Driver(INTREE, kernel_module.IN_TREE, state), "the kernel's own driver: nothing here needs DKMS"


def choose_repository(facts: Facts, wishes: Wishes, driver: Driver) -> Repository | None:
    """The driver repository to install from; None where none is needed."""
    if driver.policy != DKMS:
        return None
    if wishes.policy == DKMS:
        return Repository(wishes.repository_version, wishes.repository_exact)
    # Kept because it works: whatever version it comes from is the minimum, so nothing moves.
    versions = [v for v in map(apt_sources.version, facts.apt.drivers) if v is not None]
    return Repository(min(versions, key=driver_releases.key), False) if versions else None


def driver_release(facts: Facts, repository: Repository | None) -> driver_releases.DriverRelease | None:
    """The DKMS that will be installed: a later repository that is set already stays."""
    if repository is None:
        return driver_releases.by_module(facts.loaded.version or "")
    versions = [v for v in map(apt_sources.version, facts.apt.drivers) if v is not None]
    later = [v for v in versions if driver_releases.satisfies(v, repository.version, repository.exact)]
    return driver_releases.release(min(later, key=driver_releases.key) if later else repository.version)


# States in which a wanted driver is there already, so that no package has to change.
_NOTHING_TO_CHANGE = {
    INTREE: (states.IN_TREE_GOOD, states.IN_TREE_OLD, states.DARK),
    DKMS: (states.DKMS_GOOD,),
}


def demand_backend(facts: Facts, driver: Driver) -> None:
    """Refuse a change of packages where the kit has none of the distribution's tools. Raises Refused."""
    ready = driver.state in _NOTHING_TO_CHANGE[driver.policy] and not (driver.policy == INTREE and facts.dkms)
    if facts.distribution.apt or ready:
        return
    name = facts.distribution.name
    if driver.policy == INTREE:
        from . import own_commands

        remedy = f"Run: {own_commands.remove_dkms(facts.distribution)}"
    else:
        remedy = (
            f"Install AMD's driver for {name} by its own instructions, or use amdgpu_driver_policy intree."
        )
    raise Refused(
        f"The {driver.origin} driver is wanted, the driver's state is {driver.state}, and {name} has no apt "
        "that this kit could change its packages with.",
        remedy,
    )
