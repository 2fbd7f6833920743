# SPDX-License-Identifier: Apache-2.0
"""lemond and the bundle: another `current` takes effect with a restart, in the same step.

lemond resolves its engine when a model is loaded; a model that is loaded already would stay
in the old tree, which pruning then may not remove. The mark is written before the swap: a
run that is killed between swap and restart is taken up by the next one.
"""

from __future__ import annotations

from . import lemond_config, lemond_service, paths, systemd
from .change import Call, Change, Command, Remove, WriteFile
from .host import Host

LAYER = "vllm_rocm"
MARK = WriteFile(paths.BUNDLE_RESTART_DUE, "")


def restart_due(host: Host) -> bool:
    """Whether an earlier run swapped the bundle and did not come to the restart."""
    return host.exists(paths.BUNDLE_RESTART_DUE)


def set_up(host: Host) -> bool:
    """Whether lemond on this host has the kit's settings, and so the kit's launcher."""
    return host.exists(paths.LEMOND_DEFAULTS)


def serving(host: Host) -> bool:
    """Whether such a lemond runs. Raises CommandFailed."""
    return set_up(host) and systemd.show(host, lemond_service.UNIT).running


def restart() -> Change:
    """Restart lemond and wait until it answers. The settings that count are those on the host."""
    unit = lemond_service.UNIT
    operations = (
        Command(("systemctl", "reset-failed", unit)),
        Command(("systemctl", "restart", unit), timeout=300),
        Call(_live),
        Remove(paths.BUNDLE_RESTART_DUE),
    )
    return Change(LAYER, "service lemond", "restart", "so that it takes this bundle", operations=operations)


def _live(host: Host) -> None:
    lemond_service.await_live(host, lemond_config.read_endpoint(host))
