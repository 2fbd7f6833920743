# SPDX-License-Identifier: Apache-2.0
"""Profiles: the states in which a simulated host can be found, as overlay layers over the base root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .shell import LabUsageError

DEFAULT_PROFILE = "strix-halo-dirty"


@dataclass(frozen=True)
class Profile:
    """A named state: a machine (key of hardware.MACHINES) and what is on its disk (recipes.py)."""

    name: str
    hardware: str
    recipe: str


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("strix-halo-dirty", "strix-halo", "dirty"),
        Profile("strix-halo-dark", "strix-halo", "dark"),
        Profile("strix-halo-clean", "strix-halo", "clean"),
        Profile("strix-halo-inactive", "strix-halo", "inactive"),
        Profile("no-gpu", "no-gpu", "clean"),
        Profile("strix-point", "strix-point", "clean"),
        Profile("rdna3-7900xtx", "rdna3-7900xtx", "clean"),
        Profile("rdna4-9070xt", "rdna4-9070xt", "clean"),
        Profile("hybrid", "hybrid", "clean"),
    )
}


def find(name: str) -> Profile:
    """A profile by name; LabUsageError names those that exist."""
    if name not in PROFILES:
        raise LabUsageError(f"there is no profile {name!r}; profiles: {', '.join(PROFILES)}")
    return PROFILES[name]


def assign(names: Sequence[str], wishes: Sequence[str], existing: Mapping[str, str]) -> dict[str, str]:
    """Which profile each host gets: host -> profile, in the order of *names*.

    A wish is ``PROFILE`` (several are dealt out in turn to new hosts) or ``HOST=PROFILE``.
    Hosts that exist keep theirs; asking another one for them by name is an error.
    """
    named = dict(wish.split("=", 1) for wish in wishes if "=" in wish)
    plain = [wish for wish in wishes if "=" not in wish] or [DEFAULT_PROFILE]
    for profile in [*named.values(), *plain]:
        find(profile)
    for host, profile in named.items():
        if host not in names:
            raise LabUsageError(f"--profile {host}={profile}: no such host among {', '.join(names)}")
        if existing.get(host, profile) != profile:
            raise LabUsageError(
                f"{host} stands with profile {existing[host]}; remove the lab first (`lab down`)"
            )
    fresh = [name for name in names if name not in existing and name not in named]
    dealt = {name: plain[number % len(plain)] for number, name in enumerate(fresh)}
    chosen = {**dealt, **named, **existing}
    return {name: chosen[name] for name in names}
