# SPDX-License-Identifier: Apache-2.0
"""Reads an inventory, a playbook and extra variables with Ansible's own loaders.

A process of its own (``python -m lemonade_deploy.probe``): Ansible reads its settings once
a process, and its warnings must not mix with ours. One JSON request on standard input, one
JSON answer on standard output. Nothing is templated, no host is touched.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lemonade_deploy import patterns, probe_plays
from lemonade_deploy.patterns import PatternError

Json = dict[str, Any]


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever Ansible or a dynamic inventory prints is no answer
    from ansible.errors import AnsibleError  # type: ignore[import-untyped]

    reading: list[str] = []
    try:
        answer = _answer(request, _loader(reading))
    except (AnsibleError, OSError, ValueError) as error:  # anything else is a mistake of ours
        # An error of the vault does not say which file it is about; one about a pattern says it itself.
        file = {} if isinstance(error, PatternError) or not reading else {"file": reading[-1]}
        answer = {"error": {**file, **_told(error)}}
    json.dump(answer, answer_to, default=str)
    answer_to.flush()


def _told(error: Exception) -> Json:
    """An Ansible error as message, file and line."""
    origin = _origin(getattr(error, "obj", None))
    message = str(getattr(error, "message", None) or error)
    line = _ini_line(error)
    cause = _before(error)
    while cause is not None:
        line = line or _ini_line(cause)
        origin = _origin(getattr(cause, "obj", None)) or origin
        text = str(getattr(cause, "message", None) or cause).strip()
        if text and text not in message:
            message = f"{message.rstrip('.')}: {text}"
        cause = _before(cause)
    text = " ".join(message.replace(' in "<unicode string>", line', ", line").split())
    told = {"message": text, **(origin or {})}
    if line and not told.get("line"):
        told["line"] = line
    return told


def _before(error: BaseException) -> BaseException | None:
    """What led to *error*; the vars plugins raise a new error of Ansible's and do not say from which."""
    from ansible.errors import AnsibleError

    context = error.__context__
    return error.__cause__ or (context if isinstance(context, AnsibleError) else None)


def _ini_line(error: BaseException) -> int | None:
    """The line at which the ini plugin stood: it drops the number before it raises."""
    trace = error.__traceback__
    while trace is not None:
        seen = trace.tb_frame.f_locals
        lines, line = seen.get("lines"), seen.get("line")
        if trace.tb_frame.f_code.co_name == "_parse" and isinstance(lines, list) and line:
            return next((number for number, text in enumerate(lines, 1) if text.strip() == line), None)
        trace = trace.tb_next
    return None


def _origin(value: Any) -> Json | None:
    """File and line that a value of Ansible's came from (tags exist since ansible-core 2.19)."""
    from ansible._internal._datatag._tags import Origin  # type: ignore[import-untyped]

    if value is None:
        return None
    tag = value if isinstance(value, Origin) else Origin.get_tag(value)
    if tag is None or not tag.path:
        return None
    return {"file": str(tag.path), "line": tag.line_num}


def _loader(reading: list[str]) -> Any:
    """A loader that notes in *reading* which files it is asked for."""
    from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]

    class Loader(DataLoader):  # type: ignore[misc]
        def load_from_file(self, file_name: str, *args: Any, **kwargs: Any) -> Any:
            reading.append(str(file_name))
            return super().load_from_file(file_name, *args, **kwargs)

    return Loader()


def _answer(request: Json, loader: Any) -> Json:
    from ansible.cli import CLI  # type: ignore[import-untyped]

    CLI.setup_vault_secrets(
        loader,
        vault_ids=request["vault_ids"],
        vault_password_files=request["vault_password_files"],
        ask_vault_pass=False,
        auto_prompt=False,
    )
    inventory, failures = _inventory(loader, request["sources"])
    if failures:
        return {"error": failures[0]}
    selected = _selected(inventory, request["limit"])
    playbook = Path(request["playbook"])
    return {
        "hosts": [host.name for host in inventory.get_hosts("all", ignore_limits=True)],
        "selected": selected,
        "host_variables": _host_variables(loader, inventory, selected, request["prefixes"]),
        "playbook_variables": _playbook_variables(loader, playbook),
        "extra_variables": _extra_variables(loader, request["extra_files"]),
        "reached": probe_plays.reached(inventory, probe_plays.documents(loader, playbook), playbook.name),
        "tags": probe_plays.tags(loader, inventory, playbook) if request["tags"] else None,
    }


def _inventory(loader: Any, sources: list[str]) -> tuple[Any, list[Json]]:
    """The inventory, and what a plugin said about each source that none could read."""
    from ansible.errors import AnsibleError
    from ansible.inventory import manager  # type: ignore[import-untyped]

    heard: list[tuple[str, Exception]] = []
    # The manager tells its plugins' errors only through the display; they hold file and line.
    manager.display.error_as_warning = lambda msg=None, exception=None, **_: heard.append(
        (str(msg), exception)
    )
    try:
        inventory = manager.InventoryManager(loader=loader, sources=sources)
    except AnsibleError as error:
        told = [_told(exception) for _message, exception in heard] or [_told(error)]
        best = next((t for t in told if t.get("line")), told[0])
        return None, [{**best, "source": str(error)}]
    return inventory, []


def _selected(inventory: Any, limit: str | None) -> list[str]:
    """The hosts that the limit selects; PatternError for one that Ansible would not take as written."""
    from ansible.errors import AnsibleError
    from ansible.inventory.manager import split_host_pattern  # type: ignore[import-untyped]

    if limit is None:
        return [host.name for host in inventory.get_hosts("all")]
    terms = split_host_pattern(limit)
    if not any(term.startswith("@") for term in terms):
        wrong = patterns.fault(limit, terms)
        if wrong:
            raise PatternError(f"-l {limit!r}: {wrong}")
    try:
        inventory.subset(limit)
        for one in (term for term in terms if term.startswith("@")):
            wrong = patterns.fault(one, Path(one[1:]).read_text(encoding="utf-8").split("\n"))
            if wrong:
                raise PatternError(f"-l {limit!r}: {wrong}")
        return [host.name for host in inventory.get_hosts("all")]
    except (AnsibleError, IndexError) as error:
        raise PatternError(f"-l {limit!r}: {str(error).strip() or 'no host pattern'}") from error


def _host_variables(
    loader: Any, inventory: Any, names: list[str], prefixes: list[str]
) -> dict[str, list[Json]]:
    from ansible.vars.manager import VariableManager  # type: ignore[import-untyped]

    variables = VariableManager(loader=loader, inventory=inventory)
    found: dict[str, list[Json]] = {}
    for name in names:
        values = variables.get_vars(host=inventory.get_host(name), include_hostvars=False)
        found[name] = _described((k, v) for k, v in values.items() if k.startswith(tuple(prefixes)))
    return found


def _playbook_variables(loader: Any, path: Path) -> list[Json]:
    """Variables set in the plays' and roles' ``vars`` and in literal ``vars_files``."""
    found: list[Json] = []
    for play in probe_plays.documents(loader, path):
        found.extend(_described((play.get("vars") or {}).items()))
        for file in play.get("vars_files") or []:
            if isinstance(file, str) and "{{" not in file and (path.parent / file).is_file():
                found.extend(_described((loader.load_from_file(str(path.parent / file)) or {}).items()))
        for role in play.get("roles") or []:
            if isinstance(role, dict):
                found.extend(_described((role.get("vars") or {}).items()))
    return found


def _extra_variables(loader: Any, files: list[str]) -> list[Json]:
    found: list[Json] = []
    for file in files:
        values = loader.load_from_file(file, cache="none")
        if not isinstance(values, dict):  # Ansible refuses these, too, and blames the inventory
            held = "nothing" if values is None else "a list" if isinstance(values, list) else "one value"
            raise ValueError(f"a file of variables must hold a dictionary, it holds {held}")
        found.extend(_described(values.items()))
    return found


def _described(items: Iterable[tuple[str, Any]]) -> list[Json]:
    """Name, value, kind (plain, template, vault) and place of each variable."""
    described = []
    for name, value in items:
        kind = _kind(value)
        origin = _origin(name) or _origin(value) or {}
        shown = None if kind == "vault" else value
        described.append({"name": str(name), "value": shown, "kind": kind, **origin})
    return described


def _kind(value: Any) -> str:
    from ansible.parsing.vault import EncryptedString  # type: ignore[import-untyped]

    if isinstance(value, EncryptedString):
        return "vault"
    if isinstance(value, str):
        return "template" if "{{" in value or "{%" in value else "plain"
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    kinds = {_kind(one) for one in inner}
    return "vault" if "vault" in kinds else "template" if "template" in kinds else "plain"


if __name__ == "__main__":
    main()
