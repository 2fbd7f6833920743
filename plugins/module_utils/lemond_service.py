# SPDX-License-Identifier: Apache-2.0
"""lemond as a service of systemd: our unit, its settings and secrets, and when it must restart."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from . import gpu_check, lemond_config, paths, restart_mark, sockets, systemd
from .change import Call, Change, Command, Operation, Remove, WriteFile
from .host import Host
from .lemond_api import Lemond, wait_alive
from .lemond_log import service_errors
from .lemond_overrides import overrides
from .module import Refused
from .systemd import UnitState

LAYER = "lemonade_server"
UNIT = "lemond.service"
PROGRAM = "/usr/bin/lemond"
USER = "lemonade"  # made by the package (sysusers)
HF_HOME = "/var/cache/huggingface"
# vLLM looks in $HF_HOME, lemond literally in $HOME/.cache/huggingface: one folder for both
# (vllm_server.cpp:138-189 ignores HF_HOME).
HOME_CACHE = lemond_config.STATE_DIR + "/.cache/huggingface"
# A mask below /run holds the package's own start back (lemonade_package); our unit in /etc outranks it.
RUNTIME_MASK = "/run/systemd/system/" + UNIT
START_TIMEOUT = 60  # s; lemond answers within one, a loaded machine within a few


@dataclass(frozen=True)
class Desired:
    """Texts of the three files. ``secrets`` is "" for no file."""

    unit: str
    settings: str
    secrets: str


@dataclass(frozen=True)
class Current:
    """What stands on the host. ``cache``: "linked" (and usable), "missing", "present" or "foreign"."""

    unit: str | None
    settings: str | None
    secrets: str | None
    secrets_private: bool
    cache: str
    state: UnitState
    restart_due: bool
    gpu_check: str | None


def read(host: Host) -> Current:
    """The current state. A host without the unit, or without the package, is a state as well."""
    return Current(
        unit=host.read(paths.LEMOND_UNIT),
        settings=host.read(paths.LEMOND_DEFAULTS),
        secrets=host.read(paths.LEMOND_SECRETS),
        secrets_private=_private(host, paths.LEMOND_SECRETS),
        cache=_cache_state(host),
        state=systemd.show(host, UNIT),
        restart_due=host.exists(paths.LEMOND_RESTART_DUE),
        gpu_check=host.read(paths.GPU_CHECK),
    )


def _private(host: Host, path: str) -> bool:
    try:
        stat = os.stat(host.path(path))
    except OSError:
        return False
    return stat.st_mode & 0o777 == 0o600 and stat.st_uid == 0


def _cache_state(host: Host) -> str:
    if host.readlink(HOME_CACHE) == HF_HOME:
        return "linked" if _belongs_to_service(host, HF_HOME) else "foreign"
    return "present" if host.exists(HOME_CACHE) else "missing"


def _belongs_to_service(host: Host, folder: str) -> bool:
    """A model folder of somebody else's makes every download fail (lemonade issue 3416)."""
    try:
        return os.stat(host.path(folder)).st_uid == pwd.getpwnam(USER).pw_uid
    except (OSError, KeyError):
        return False


def plan(
    current: Current,
    desired: Desired,
    endpoint: str,
    give_way: Sequence[Change] = (),
    first: Sequence[Change] = (),
) -> list[Change]:
    """What to do; the service is restarted only where one of its files changes, or is not running.

    Starting, enabling and restarting are one change: on a fresh host the package's scripts may or
    may not have enabled the unit, and a prediction must not depend on that. *give_way*: what stops
    another daemon; it comes right before the start. *first*: what comes before all else.
    """
    changes = [*first, *_file_changes(current, desired)]
    if changes:
        # Written first: a run that dies between the files and the restart is taken up again.
        due = WriteFile(paths.LEMOND_RESTART_DUE, "")
        changes[0] = replace(changes[0], operations=(due, *changes[0].operations))
    changes += give_way
    if not current.state.running:
        changes.append(_service_change("start", endpoint))
    elif changes or current.restart_due:
        changes.append(_service_change("restart", endpoint))
    elif current.state.enabled != "enabled":
        changes.append(Change(LAYER, "service lemond", "enable", operations=(_systemctl("enable"),)))
    return changes


def _file_changes(current: Current, desired: Desired) -> list[Change]:
    changes = common_changes(current, desired.secrets)
    if current.unit != desired.unit:
        changes.append(_write("unit lemond.service", paths.LEMOND_UNIT, current.unit, desired.unit))
    if current.settings != desired.settings:
        changes.append(_write("lemond settings", paths.LEMOND_DEFAULTS, current.settings, desired.settings))
    return changes


def common_changes(current: Current, secrets: str) -> list[Change]:
    """What lemond and vLLM as daemons share: the model folder, the check of the GPU, the secrets."""
    changes = []
    if current.cache != "linked":
        changes.append(
            Change(
                LAYER,
                f"folder {HOME_CACHE}",
                "link",
                f"to {HF_HOME}, so that lemond and vLLM see the same models",
                operations=(Call(link_cache),),
            )
        )
    check = gpu_check.script()
    if current.gpu_check != check:
        write = WriteFile(paths.GPU_CHECK, check, 0o755)
        changes.append(
            Change(LAYER, "gpu check", "write", paths.GPU_CHECK, current.gpu_check or "", check, (write,))
        )
    if (current.secrets or "") != secrets or (secrets and not current.secrets_private):
        operation: Operation = WriteFile(paths.LEMOND_SECRETS, secrets, 0o600, (0, 0))
        if not secrets:
            operation = Remove(paths.LEMOND_SECRETS)
        action = "write" if secrets else "remove"
        # No before/after: --diff must not show them.
        changes.append(Change(LAYER, "lemond secrets", action, paths.LEMOND_SECRETS, operations=(operation,)))
    return changes


def _write(name: str, path: str, before: str | None, after: str) -> Change:
    return Change(LAYER, name, "write", path, before or "", after, (WriteFile(path, after),))


def _systemctl(*arguments: str) -> Command:
    return Command(("systemctl", *arguments, UNIT), timeout=300)


def _service_change(action: str, endpoint: str) -> Change:
    operations = (
        Remove(RUNTIME_MASK),
        Command(("systemctl", "daemon-reload")),
        _systemctl("enable"),
        _systemctl("reset-failed"),
        restart_mark.TAKE,
        _systemctl("restart"),
        Call(lambda host: await_live(host, endpoint)),
        restart_mark.SETTLE,
        Remove(paths.LEMOND_RESTART_DUE),
    )
    return Change(LAYER, "service lemond", action, endpoint, operations=operations)


def await_live(host: Host, endpoint: str) -> None:
    """Wait until lemond answers at *endpoint*. Raises Refused with its own last errors."""
    port = urlsplit(endpoint).port or 0

    def running() -> bool:
        state = systemd.show(host, UNIT)
        # Where somebody else holds the port, systemd would try again and again.
        between = state.active == "activating" and sockets.listener(host, port) is None
        return state.active == "active" or between

    alive = wait_alive(Lemond(endpoint), running, START_TIMEOUT)
    # Something else may hold the port and answer for it.
    if alive and systemd.show(host, UNIT).running:
        return
    said = service_errors(host) or ["it said nothing"]
    refuse_foreign_holder(host, endpoint, UNIT)
    raise Refused(
        f"lemond does not answer at {endpoint}. Its last errors: {' | '.join(said)}",
        "See `journalctl -u lemond -n 50`.",
    )


def refuse_foreign_holder(host: Host, endpoint: str, unit: str) -> None:
    """Raises Refused where something that does not belong to *unit* listens on the endpoint's port."""
    port = urlsplit(endpoint).port or 0
    holder = sockets.listener(host, port)
    if holder is not None and holder.unit != unit:
        raise Refused(
            f"Port {port} is taken by {holder}.",
            "Stop and disable it (a lemond of a user: `systemctl --user disable --now lemond`), or choose "
            "another lemonade_server_port.",
        )


def findings(host: Host, client: Lemond, settings: lemond_config.Settings) -> list[dict[str, str]]:
    """What lemond makes of *settings*, read back from it. Raises Refused where it does not say."""
    # Somebody may just have restarted it.
    wait_alive(client, lambda: systemd.show(host, UNIT).active == "active", START_TIMEOUT)
    answer = client.get("/internal/config")
    if not answer.ok or not isinstance(answer.body, dict):
        raise Refused(
            f"lemond does not tell its settings (GET /internal/config: {answer.error}).",
            "Where LEMONADE_ADMIN_API_KEY is set in /etc/default/lemond, remove it: the API key covers it.",
        )
    return lemond_config.findings(settings, answer.body, overrides(host))


def link_cache(host: Host) -> None:
    """Make $HOME/.cache/huggingface a link to HF_HOME; models in an older folder move there.

    Raises Refused where both folders hold something: which one counts is not ours to say.
    """
    try:
        user = pwd.getpwnam(USER)
    except KeyError as error:
        raise Refused(
            f"There is no user {USER}.", "The package lemonade-server makes it; install that first."
        ) from error
    for folder in (lemond_config.STATE_DIR, os.path.dirname(HOME_CACHE), HF_HOME):
        if not host.exists(folder):
            os.makedirs(host.path(folder), 0o750 if folder == lemond_config.STATE_DIR else 0o755)
        try:
            host.give(folder, user.pw_uid, user.pw_gid)
        except NotADirectoryError as error:
            raise Refused(
                f"{folder} is no folder, or a link that {USER} could have made: root does not follow it.",
                "Make it a folder; another disk can be mounted there.",
            ) from error
    old = host.path(HOME_CACHE)
    if os.path.isdir(old) and not os.path.islink(old):
        if host.listdir(HOME_CACHE) and host.listdir(HF_HOME):
            raise Refused(
                f"Both {HOME_CACHE} and {HF_HOME} hold models.",
                f"Move what you want to keep into {HF_HOME} and remove {HOME_CACHE}.",
            )
        for name in host.listdir(HOME_CACHE):
            shutil.move(os.path.join(old, name), host.path(HF_HOME))
        os.rmdir(old)
    elif os.path.lexists(old):
        os.unlink(old)
    os.symlink(HF_HOME, old)
    os.lchown(old, user.pw_uid, user.pw_gid)
