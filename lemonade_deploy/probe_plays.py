# SPDX-License-Identifier: Apache-2.0
"""The plays of a playbook as Ansible sees them: which hosts they are for, which tags they know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lemonade_deploy.patterns import PatternError, fault

# Tags with a meaning of Ansible's own.
SPECIAL_TAGS = frozenset({"all", "always", "never", "tagged", "untagged"})


def documents(loader: Any, path: Path) -> list[Any]:
    """The plays as written; those of an imported playbook in its place, where it is a file."""
    found: list[Any] = []
    plays = loader.load_from_file(str(path))
    for play in plays if isinstance(plays, list) else []:
        if not isinstance(play, dict):
            continue
        file = imported(play)
        if file and "{{" not in file and (path.parent / file).is_file():
            found.extend(documents(loader, path.parent / file))
        else:
            found.append(play)
    return found


def imported(play: dict[str, Any]) -> str:
    """The playbook that an entry imports, or an empty text."""
    return str(play.get("import_playbook") or play.get("ansible.builtin.import_playbook") or "")


def patterns(plays: list[Any]) -> list[str]:
    """The host patterns; those that only a run can know are missing, and then so is the answer: empty."""
    found: list[str] = []
    for play in plays:
        hosts = play.get("hosts")
        words = [str(one) for one in (hosts if isinstance(hosts, list) else [hosts]) if one]
        if not words or any("{{" in word for word in words):
            return []
        found.append(",".join(words))
    return found


def reached(inventory: Any, plays: list[Any], said: str) -> bool:
    """Whether a play is for a host that was selected; True where only the run can tell.

    Raises PatternError for a ``hosts:`` that Ansible would not take as written.
    """
    from ansible.inventory.manager import split_host_pattern  # type: ignore[import-untyped]

    wanted = patterns(plays)
    for pattern in wanted:
        wrong = fault(pattern, split_host_pattern(pattern))
        if wrong:
            raise PatternError(f"{said}: hosts: {pattern!r}: {wrong}")
    return not wanted or any(inventory.get_hosts(pattern) for pattern in wanted)


def tags(loader: Any, inventory: Any, path: Path) -> list[str] | None:
    """The tags of the playbook's plays, roles and tasks; None where only the run can tell.

    That is so where tasks are included while it runs (``include_tasks``, ``include_role``), and where
    Ansible cannot load the plays without the run's variables; what is wrong else, the run says itself.
    """
    from ansible.errors import AnsibleError  # type: ignore[import-untyped]
    from ansible.playbook import Playbook  # type: ignore[import-untyped]
    from ansible.plugins.loader import init_plugin_loader  # type: ignore[import-untyped]
    from ansible.vars.manager import VariableManager  # type: ignore[import-untyped]

    init_plugin_loader()
    variables = VariableManager(loader=loader, inventory=inventory)
    found: set[str] = set()
    try:
        plays = Playbook.load(str(path), variable_manager=variables, loader=loader).get_plays()
        blocks = [(play, block) for play in plays for block in play.compile()]
    except AnsibleError:
        return None
    for play in plays:
        found.update(play.tags)
        for block in (block for owner, block in blocks if owner is play):
            for task in _tasks(block):
                if str(task.action).rpartition(".")[2] in ("include_tasks", "include_role"):
                    return None
                found.update(task.tags)
        for role in play.get_roles():
            found.update(role.tags)
    return sorted(found | SPECIAL_TAGS)


def _tasks(block: Any) -> Iterator[Any]:
    for task in [*block.block, *block.rescue, *block.always]:
        if hasattr(task, "block") and hasattr(task, "rescue"):
            yield from _tasks(task)
        else:
            yield task
