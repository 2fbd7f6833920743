# SPDX-License-Identifier: Apache-2.0
"""Everything that is checked and decided before a host is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lemonade_deploy import extra_vars, inventory, secrets_in_argv, specs, validate, vault
from lemonade_deploy.ansible_env import environment
from lemonade_deploy.errors import UsageError, did_you_mean
from lemonade_deploy.probe_plays import SPECIAL_TAGS
from lemonade_deploy.specs import Specs
from lemonade_deploy.validate import Variable

# How long a step of a layer may take: the role variable that says so, in seconds.
LIMITS = {
    "activate": "activate_reboot_timeout",
    "models": "models_load_timeout",
    "verify": "verify_timeout",
}


CONNECTION = "ansible_connection"


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    playbook: Path
    inventory: tuple[str, ...] = ()
    limit: str | None = None
    extra_vars: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    check: bool = False
    diff: bool = False
    forks: int | None = None
    ask_pass: bool = False
    ask_become_pass: bool = False
    vault_ids: tuple[str, ...] = ()
    vault_password_files: tuple[str, ...] = ()
    ask_vault_pass: bool = False
    verbosity: int = 0
    folder: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True)
class Prepared:
    """A request that can be run."""

    request: Request
    selection: inventory.Selection
    hosts: list[str]
    extra: extra_vars.ExtraFiles
    vault: vault.VaultSecrets
    environment: dict[str, str]
    limits: dict[str, dict[str, float]]
    forks: int
    local: frozenset[str]  # the hosts that are this very machine


def prepare(request: Request, private: Path) -> Prepared:
    """Check *request*; raises UsageError. *private* is the run's own folder (0700)."""
    known = specs.load()
    secrets_in_argv.refuse(request.extra_vars, known.secret_names())
    selection = inventory.select(request.inventory, request.folder, private)
    extra = extra_vars.prepare(request.extra_vars, request.folder, private)
    secrets = vault.prepare(
        request.vault_ids, request.vault_password_files, request.ask_vault_pass, request.folder, private
    )
    settings = environment(private, request.folder)
    answer = _probe(request, selection, extra, secrets, known, settings)
    hosts = _chosen(request, selection, answer)
    _check_plays(request, answer)
    _check_variables(answer, extra, known)
    return Prepared(
        request,
        selection,
        hosts,
        extra,
        secrets,
        settings,
        _limits(answer, known),
        request.forks or _configured_forks(request.folder) or max(5, min(50, len(hosts))),
        _local(answer),
    )


def _local(answer: Mapping[str, Any]) -> frozenset[str]:
    """The hosts with a local connection."""
    return frozenset(
        host
        for host, told in answer["host_variables"].items()
        if any(one["name"] == CONNECTION and one["value"] == "local" for one in told)
    )


def _configured_forks(folder: Path) -> int | None:
    text = os.environ.get("ANSIBLE_FORKS") or inventory.read_config(folder).get("defaults", {}).get(
        "forks", ""
    )
    return int(text) if text.isdigit() else None


def _probe(
    request: Request,
    selection: inventory.Selection,
    extra: extra_vars.ExtraFiles,
    secrets: vault.VaultSecrets,
    known: Specs,
    settings: Mapping[str, str],
) -> dict[str, Any]:
    """Ask Ansible's own loaders (see probe.py); their errors become UsageError."""
    question = {
        "sources": list(selection.sources),
        "limit": request.limit,
        "tags": bool(request.tags or request.skip_tags),
        "playbook": str(request.playbook),
        "extra_files": [str(path) for path in extra.files],
        "vault_ids": list(secrets.ids),
        "vault_password_files": list(secrets.password_files),
        "prefixes": [*(f"{role}_" for role in known.roles), CONNECTION],
    }
    done = subprocess.run(
        [sys.executable, "-m", "lemonade_deploy.probe"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
        cwd=request.folder,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise RuntimeError(f"probe.py ended with code {done.returncode}: {done.stderr[-2000:]}") from error
    if "error" in answer:
        raise _probe_error(answer["error"], extra)
    return answer


def _probe_error(told: Mapping[str, Any], extra: extra_vars.ExtraFiles) -> UsageError:
    file = str(told.get("file") or "")
    place = extra.names.get(file, file)
    if place and told.get("line"):
        place = f"{place}:{told['line']}"
    message = str(told["message"])
    source = str(told.get("source") or "")
    remedy = "No host was touched."
    if "vault password must be" in message or "no vault secrets" in message:
        remedy = "Give --vault-password-file FILE, --vault-id ID@FILE or --ask-vault-pass. " + remedy
    elif "has the wrong mode" in message:
        remedy = "chmod it. " + remedy
    text = f"{place}: {message}" if place else message
    return UsageError(
        f"{text}\n{source}" if source and source.rsplit(" ", 1)[-1] not in text else text, remedy
    )


def _chosen(request: Request, selection: inventory.Selection, answer: Mapping[str, Any]) -> list[str]:
    """The hosts of this run; UsageError when there is none."""
    every, chosen = answer["hosts"], answer["selected"]
    if not every:
        raise UsageError(f"The inventory {selection.said} holds no host.", "No host was touched.")
    odd = next((name for name in every if not name.isprintable() or not name.strip()), None)
    if odd is not None:
        raise UsageError(f"The inventory {selection.said} holds a host {odd!r}: that is no host's name.")
    if not chosen:
        hint = did_you_mean(str(request.limit), every) or f"Its hosts: {', '.join(every[:8])}."
        raise UsageError(f"-l {request.limit}: no host of the inventory {selection.said} matches.", hint)
    return list(chosen)


def _check_plays(request: Request, answer: Mapping[str, Any]) -> None:
    """UsageError for tags that the playbook has not, and for a playbook that is for none of the hosts."""
    for option, given in (("-t", request.tags), ("--skip-tags", request.skip_tags)):
        words = [[word.strip() for word in text.split(",") if word.strip()] for text in given]
        if not all(words):
            raise UsageError(f"{option}: it names no tag.", "No host was touched.")
        known = answer["tags"]
        for word in (word for some in words for word in some):
            if known is not None and word not in known:
                names = ", ".join(name for name in known if name not in SPECIAL_TAGS)
                hint = did_you_mean(word, known) or (f"Its tags: {names}." if names else "It has no tags.")
                raise UsageError(f"{option} {word}: {request.playbook.name} has no such tag.", hint)
    if not answer["reached"]:
        raise UsageError(
            f"{request.playbook.name}: its hosts: match none of {', '.join(answer['selected'][:8])}.",
            "Name other hosts with -i or -l, or other hosts: in the playbook.",
        )


def _variables(told: list[dict[str, Any]], extra: extra_vars.ExtraFiles) -> list[Variable]:
    found = []
    for one in told:
        file, line = str(one.get("file") or ""), one.get("line")
        typed = extra.names.get(file, "")
        if typed:
            file, line = typed, line if not typed.startswith("-e ") else None
        found.append(Variable(one["name"], one["value"], one["kind"], file, line))
    return found


def _check_variables(answer: Mapping[str, Any], extra: extra_vars.ExtraFiles, known: Specs) -> None:
    common = _variables(answer["playbook_variables"] + answer["extra_variables"], extra)
    typed = {one.name: one for one in _variables(answer["extra_variables"], extra)}
    every = list(common)
    counting: dict[str, dict[str, Variable]] = {}
    for host, told in answer["host_variables"].items():
        own = _variables(told, extra)
        every.extend(own)
        counting[host] = {**{one.name: one for one in own}, **typed}
    validate.demand(validate.check(every, known) + validate.clashes(counting))


def _limits(answer: Mapping[str, Any], known: Specs) -> dict[str, dict[str, float]]:
    """Per host and layer the limit in seconds: the user's value, else the role's default."""
    limits: dict[str, dict[str, float]] = {}
    for host, told in answer["host_variables"].items():
        values = {one["name"]: one["value"] for one in [*told, *answer["extra_variables"]]}
        for layer, variable in LIMITS.items():
            value = values.get(variable, (known.find(variable) or {}).get("default"))
            text = str(value)
            if text.isdigit():
                limits.setdefault(host, {})[layer] = float(text)
    return limits
