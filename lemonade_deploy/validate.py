# SPDX-License-Identifier: Apache-2.0
"""The user's variables against the roles' specs, before any host is touched."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator  # type: ignore[import-untyped]

from lemonade_deploy import limits
from lemonade_deploy.domain import user_values
from lemonade_deploy.errors import UsageError, did_you_mean
from lemonade_deploy.secrets_in_argv import is_secret_name
from lemonade_deploy.specs import Specs, shape

BIND_HOST = "lemonade_server_host"
API_KEY = "lemonade_server_api_key"
INSTALLER = "vllm_rocm_installer"
GENERATE = "lemonade_server_api_key_generate"


_NAMED = 8  # hosts named in one sentence
_YES = ("true", "yes", "on", "1", "y", "t")  # as Ansible reads a boolean


@dataclass(frozen=True)
class Variable:
    """One variable as the user wrote it. ``kind`` is plain, template or vault."""

    name: str
    value: Any
    kind: str = "plain"
    file: str = ""
    line: int | None = None

    @property
    def place(self) -> str:
        """``file:line``, as far as known."""
        return f"{self.file}:{self.line}" if self.file and self.line else self.file


def check(variables: Iterable[Variable], specs: Specs) -> list[str]:
    """What is wrong with *variables*: one text each, in the order given, without repeats."""
    problems = (_problem(variable, specs) for variable in variables)
    return list(dict.fromkeys(problem for problem in problems if problem))


def _problem(variable: Variable, specs: Specs) -> str:
    role = specs.role_of(variable.name)
    spec = specs.find(variable.name)
    if role is None and spec is None:
        return ""
    where = f"{variable.place}: " if variable.place else ""
    if spec is None:
        hint = did_you_mean(variable.name, specs.names())
        # A misspelt secret is a secret.
        secret = is_secret_name(variable.name) or any(f" {name}?" in hint for name in specs.secret_names())
        shown = "" if secret or variable.kind == "vault" else f" (value {_shown(variable.value)})"
        return f"{where}{variable.name}{shown}: the role {role} takes no such variable. {hint}".strip()
    wrong = "" if variable.kind != "plain" else _wrong_value(variable, spec)
    return f"{where}{variable.name}: {wrong}" if wrong else ""


def _wrong_value(variable: Variable, spec: Mapping[str, Any]) -> str:
    """Why the value does not fit, or an empty text. Secret values are not shown."""
    value, kind = variable.value, spec.get("type", "str")
    told = "" if spec.get("no_log") else f" {_shown(value)}"
    if value is None:
        return ""  # "not set": the role's default counts
    if kind == "str" and isinstance(value, float):
        # YAML reads 31.20 as the number 31.2: what arrives is not what was written.
        return f"the value{told} is a number, a text is wanted. Put it in quotes."
    if kind in ("str", "path") and isinstance(value, dict | list):
        return f"the value{told} is a {type(value).__name__}, a text is wanted."
    if isinstance(value, bool) and kind in ("int", "float"):
        return f"the value{told} is a boolean, a number is wanted."
    if isinstance(value, str) and kind in ("list", "dict") and not value.strip():
        return f"the value is empty, a {kind} is wanted."
    result = ArgumentSpecValidator({variable.name: shape(dict(spec))}).validate({variable.name: value})
    if not result.error_messages:
        if unfit := user_values.fault(variable.name, value):
            return f"the value {unfit}."  # it may hold a secret: not shown
        wrong_form = limits.fault(variable.name, value)
        return f"the value{told} {wrong_form}." if wrong_form else ""
    if spec.get("no_log"):
        return f"the value is not of type {kind}."
    choices = [str(choice) for choice in spec.get("choices") or []]
    if choices and isinstance(value, str):
        hint = did_you_mean(value, choices)
        return f"the value {_shown(value)} is none of {', '.join(choices)}. {hint}".strip()
    return f"the value {_shown(value)} does not fit: {'; '.join(result.error_messages)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


class Clash(NamedTuple):
    """Two variables that do not go together on a host: ``what``, and ``why`` (with what to do)."""

    what: str
    why: str

    def told(self, hosts: Sequence[str]) -> str:
        """The problem, once for all the *hosts* that have it; at most eight are named."""
        more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
        names = f"host{'s' if len(hosts) > 1 else ''} {', '.join(hosts[:_NAMED])}{more}"
        return f"{self.what} ({names}) {self.why}"


def clashes(by_host: Mapping[str, Mapping[str, Variable]]) -> list[str]:
    """One text for each clash, with its hosts. *by_host*: the variables that count for each."""
    found: dict[Clash, list[str]] = {}
    for host, values in by_host.items():
        for clash in (check_binding(values), check_installer(values)):
            if clash is not None:
                found.setdefault(clash, []).append(host)
    return [clash.told(hosts) for clash, hosts in found.items()]


def check_binding(values: Mapping[str, Variable]) -> Clash | None:
    """A server that listens beyond loopback without an API key; else None.

    *values* are the variables that count for a host (extra variables included).
    """
    bind, key, made = values.get(BIND_HOST), values.get(API_KEY), values.get(GENERATE)
    if bind is None or bind.kind != "plain" or _is_loopback(str(bind.value)):
        return None
    if made is not None and (made.kind != "plain" or str(made.value).lower() in _YES):
        return None
    if key is not None and (key.kind != "plain" or key.value):
        return None
    where = f"{bind.place}: " if bind.place else ""
    return Clash(
        f"{where}{BIND_HOST} {bind.value}",
        f"is wider than loopback, and {API_KEY} is not set: "
        f"anybody on the network could use the server. Set {API_KEY} (in a vault) or {GENERATE}, "
        "or keep 127.0.0.1.",
    )


def check_installer(values: Mapping[str, Variable]) -> Clash | None:
    """vLLM is to be installed by a lemond that may not, or does not run; else None."""
    installer = values.get(INSTALLER)
    if installer is None or installer.kind != "plain" or installer.value != "lemond":
        return None
    other = values.get("lemonade_server_daemon")
    if other is None or other.kind != "plain" or other.value != "vllm":
        other = values.get("lemonade_server_offline")
        if other is None or other.kind != "plain" or str(other.value).lower() not in _YES:
            return None
    where = f"{installer.place}: " if installer.place else ""
    at = f" ({other.place})" if other.place else ""
    return Clash(
        f"{where}{INSTALLER} lemond",
        f"contradicts {other.name} {other.value}{at}: lemond must "
        f"run, and reach GitHub. Use {INSTALLER}: kit there.",
    )


def _is_loopback(address: str) -> bool:
    if address in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def demand(problems: list[str]) -> None:
    """Raise UsageError when there are *problems*; all of them are named, at most ten."""
    if not problems:
        return
    shown = problems[:10] + ([f"… and {len(problems) - 10} more"] if len(problems) > 10 else [])
    raise UsageError("\n".join(shown), "No host was touched.")
