# SPDX-License-Identifier: Apache-2.0
"""The daemon and the bundle: another `current` takes effect with a restart, in the same step.

lemond resolves its engine when a model is loaded, vLLM as the daemon when it starts; what runs already
would stay in the old tree, which pruning then may not remove. The mark is written before the swap: a
run that is killed between swap and restart is taken up by the next one.
"""

from __future__ import annotations

from functools import partial

from . import daemon, lemond_config, lemond_service, restart_mark, systemd, vllm_service
from .alone import alone
from .change import Call, Change, Operation
from .host import Host

LAYER = "vllm_rocm"
_DETAIL = "so that it takes this bundle"
_LOCK = "/run/lemonade-deploy-daemon.lock"
_WAIT = vllm_service.START_TIMEOUT + 60.0  # s; loading a model is part of vLLM's start


def marked(swap: Operation) -> tuple[Operation, ...]:
    """A swap that a restart must follow.

    Marked again afterwards: another run's restart between mark and swap has taken the first one away.
    """
    return (restart_mark.SET, swap, restart_mark.SET)


def set_up(host: Host) -> str:
    """The daemon that the kit set up on this host, with the kit's launcher; "" for none."""
    return daemon.installed(host)


def serving(host: Host) -> str:
    """Such a daemon where it runs or is being started, else "". Raises CommandFailed."""
    name = set_up(host)
    if not name:
        return ""
    state = systemd.show(host, daemon.UNITS[name])
    return name if state.running or state.coming else ""


def restart(name: str = daemon.LEMOND) -> Change:
    """Restart the daemon and wait until it answers. The settings that count are those on the host.

    vLLM as the daemon loads its model with the new bundle before this is done.
    """
    again = Call(partial(_once, name))
    return Change(LAYER, f"service {name}", "restart", _DETAIL, operations=(again,))


def _once(name: str, host: Host) -> None:
    """One run at a time restarts; who finds the mark gone was waiting for the restart that it wanted.

    Raises Refused, CommandFailed.
    """
    with alone(host, _LOCK, _WAIT, "restarting the daemon"):
        while restart_mark.due(host):  # once more for a swap that came while the daemon was starting
            restart_mark.TAKE.apply(host)
            _restart(name, host)
            restart_mark.SETTLE.apply(host)


def _restart(name: str, host: Host) -> None:
    unit = daemon.UNITS[name]
    host.run(["systemctl", "reset-failed", unit], timeout=60)
    if name == daemon.VLLM:
        vllm_service.restart(host)
        return
    host.run(["systemctl", "restart", unit], timeout=300)
    lemond_service.await_live(host, lemond_config.read_endpoint(host))
