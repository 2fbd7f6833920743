# SPDX-License-Identifier: Apache-2.0
"""The daemon and the bundle: another `current` takes effect with a restart, in the same step.

lemond resolves its engine when a model is loaded, vLLM as the daemon when it starts; what runs already
would stay in the old tree, which pruning then may not remove. The mark is written before the swap: a
run that is killed between swap and restart is taken up by the next one.
"""

from __future__ import annotations

from . import daemon, lemond_config, lemond_service, paths, systemd, vllm_service
from .change import Call, Change, Command, Remove, WriteFile
from .host import Host

LAYER = "vllm_rocm"
MARK = WriteFile(paths.BUNDLE_RESTART_DUE, "")
_DETAIL = "so that it takes this bundle"


def restart_due(host: Host) -> bool:
    """Whether an earlier run swapped the bundle and did not come to the restart."""
    return host.exists(paths.BUNDLE_RESTART_DUE)


def set_up(host: Host) -> str:
    """The daemon that the kit set up on this host, with the kit's launcher; "" for none."""
    return daemon.installed(host)


def serving(host: Host) -> str:
    """Such a daemon where it runs, else "". Raises CommandFailed."""
    name = set_up(host)
    return name if name and systemd.show(host, daemon.UNITS[name]).running else ""


def restart(name: str = daemon.LEMOND) -> Change:
    """Restart the daemon and wait until it answers. The settings that count are those on the host.

    vLLM as the daemon loads its model with the new bundle before this is done.
    """
    if name == daemon.VLLM:
        return vllm_service.restart(LAYER, _DETAIL)
    unit = lemond_service.UNIT
    operations = (
        Command(("systemctl", "reset-failed", unit)),
        Command(("systemctl", "restart", unit), timeout=300),
        Call(_live),
        Remove(paths.BUNDLE_RESTART_DUE),
    )
    return Change(LAYER, "service lemond", "restart", _DETAIL, operations=operations)


def _live(host: Host) -> None:
    lemond_service.await_live(host, lemond_config.read_endpoint(host))
