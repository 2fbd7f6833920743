#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module lemonade_service: unit, settings and secrets of the daemon, and the running service."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lemonade_service
short_description: Run Lemonade Server, or vLLM itself, by our own unit and settings
version_added: "0.1.0"
description:
  - Writes the whole unit to C(/etc/systemd/system), the settings to the file that C(LEMONADE_DEFAULTS_PATH)
    names, and the secrets to an environment file that only root can read. Drop-ins of the user are kept.
  - Restarts the service only where one of these changed, enables it, and waits until it answers.
  - Reads the effective settings back; what C(config.json) overrides is the finding C(config-overridden).
  - With O(daemon=vllm) the unit runs the bundle's launcher with the first of O(models), and no lemond runs.
    It is started here where that model is on the host; else M(lemonade.deploy.lemonade_model) starts it.
  - The daemon that is not wanted is stopped; its models and settings stay.
options:
  daemon:
    description: What serves.
    type: str
    choices: [lemond, vllm]
    default: lemond
  unit:
    description:
      - Text of the unit file. For O(daemon=vllm) it holds C(@ARGUMENTS@) where vLLM's arguments belong.
    type: str
    required: true
  environment:
    description: What O(unit) was given as environment variables; only judged here.
    type: dict
    default: {}
  hub_url:
    description: What O(unit) was given as the models' mirror; only judged here.
    type: str
    default: ""
  models:
    description: The wanted models. O(daemon=vllm) serves the first; O(offline) judges each.
    type: list
    elements: dict
    default: []
  offline:
    description: That the host reaches no internet, now or later.
    type: bool
    default: false
  load_timeout:
    description: Seconds that vLLM may take to start, which loads its model; only for O(daemon=vllm).
    type: int
    default: 1800
  binary:
    description: A lemond on the host that the unit runs instead of the package's; empty for the package's.
    type: str
    default: ""
  watchdog:
    description: A timer that restarts the daemon where it runs, has answered, and answers no more.
    type: bool
    default: true
  host:
    description: Address to bind to. Anything but loopback needs O(api_key).
    type: str
    default: 127.0.0.1
  port:
    description: TCP port.
    type: int
    default: 13305
  ctx_size:
    description: Context length in tokens; -1 lets lemond guess.
    type: int
    default: 4096
  global_timeout:
    description: Seconds that lemond gives each of its two tries to load a model; more than 0.
    type: int
    default: 1800
  vllm_args:
    description: Further arguments for vLLM.
    type: str
    default: ""
  settings:
    description: Further settings, by the keys of lemond's defaults.json.
    type: dict
    default: {}
  api_key:
    description: Key that clients must send.
    type: str
    default: ""
  api_key_generate:
    description: Make a key on the host where O(api_key) is empty and none is there. It is never returned.
    type: bool
    default: false
  hf_token:
    description: Hugging Face token.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Predicts every change.
  diff_mode:
    support: full
    description: Shows the unit and the settings, never the secrets.
author:
  - The lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: Run Lemonade Server on the loopback address
  lemonade.deploy.lemonade_service:
    unit: "{{ lookup('ansible.builtin.template', 'lemond.service.j2') }}"
    global_timeout: 1800

- name: Run vLLM without any internet
  lemonade.deploy.lemonade_service:
    daemon: vllm
    unit: "{{ lookup('ansible.builtin.template', 'vllm.service.j2') }}"
    models: "{{ models_wanted }}"
"""

RETURN = r"""
changes:
  description: What was or would be changed; where the module fails, what was finished before that.
  returned: always
  type: list
  elements: dict
  contains:
    layer:
      description: The role.
      type: str
    object:
      description: What is different, without its version.
      type: str
    action:
      description: A verb.
      type: str
    detail:
      description: For people.
      type: str
daemon:
  description: What serves, V(lemond) or V(vllm).
  returned: success
  type: str
endpoint:
  description: URL of the daemon as the host itself reaches it.
  returned: success
  type: str
  sample: http://127.0.0.1:13305
findings:
  description: Settings that lemond does not follow.
  returned: success
  type: list
  elements: dict
drop_ins:
  description: Drop-ins of the unit that somebody else wrote.
  returned: success
  type: list
  elements: str
"""

from typing import Any

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import (
    daemon,
    lemond_binary,
    lemond_config,
    lemond_offline,
    lemond_service,
    lemond_state,
    service_keys,
    systemd,
    user_values,
    vllm_service,
    watchdog,
)
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.lemond_api import Lemond
from ansible_collections.lemonade.deploy.plugins.module_utils.module import run_module

ARGUMENTS: dict[str, Any] = {
    "daemon": {"type": "str", "choices": ["lemond", "vllm"], "default": "lemond"},
    "unit": {"type": "str", "required": True},
    "environment": {"type": "dict", "default": {}},
    "hub_url": {"type": "str", "default": ""},
    "models": {"type": "list", "elements": "dict", "default": []},
    "offline": {"type": "bool", "default": False},
    "load_timeout": {"type": "int", "default": 1800},
    "binary": {"type": "str", "default": ""},
    "watchdog": {"type": "bool", "default": True},
    "host": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "default": 13305},
    "ctx_size": {"type": "int", "default": 4096},
    "global_timeout": {"type": "int", "default": 1800},
    "vllm_args": {"type": "str", "default": ""},
    "settings": {"type": "dict", "default": {}},
    "api_key": {"type": "str", "default": "", "no_log": True},
    "api_key_generate": {"type": "bool", "default": False, "no_log": False},
    "hf_token": {"type": "str", "default": "", "no_log": True},
}
# Role variables that reach a unit, a command line or a file that others read, and their options here.
_JUDGED = {
    user_values.ENVIRONMENT: "environment",
    user_values.ARGUMENTS: "vllm_args",
    user_values.SETTINGS: "settings",
    user_values.MODELS: "models",
    "models_hub_url": "hub_url",
    "lemonade_server_binary": "binary",
    "lemonade_server_host": "host",
}


class Service:
    """The daemon as it is wanted: its plan, and what is told of it afterwards."""

    def __init__(self, host: Host, given: dict[str, Any]) -> None:
        self._host, self._given = host, given
        self.settings = lemond_config.Settings(
            given["host"],
            given["port"],
            given["ctx_size"],
            given["global_timeout"],
            given["vllm_args"],
            lemond_config.merged(lemond_config.OFFLINE if given["offline"] else {}, given["settings"]),
        )
        self.endpoint = lemond_config.endpoint(self.settings.host, self.settings.port)
        self.api_key = service_keys.api_key(host, given["api_key"], given["api_key_generate"])

    def plan(self) -> list[Change]:
        """All changes. Raises Refused."""
        user_values.demand({name: self._given[key] for name, key in _JUDGED.items()})
        lemond_config.check(self.settings, self.api_key)
        lemond_config.check_unit(self._given["unit"])
        vllm = self._given["daemon"] == daemon.VLLM
        changes = self._plan_vllm() if vllm else self._plan_lemond()
        url = self.endpoint + ("/health" if vllm else "/live")
        unit = daemon.UNITS[self._given["daemon"]]
        return changes + watchdog.plan(self._host, self._given["watchdog"], unit, url)

    def _plan_vllm(self) -> list[Change]:
        given = self._given
        model = vllm_service.model_from(given["models"], given["ctx_size"], given["vllm_args"])
        current = vllm_service.read(self._host, model)
        if given["offline"] and not current.model_there:
            vllm_service.refuse_missing(model)
        unit = vllm_service.unit_text(given["unit"], model, self.settings.host, self.settings.port)
        desired = vllm_service.Desired(unit, self._secrets(vllm=True), model)
        return vllm_service.plan(current, desired, self.endpoint, given["load_timeout"])

    def _plan_lemond(self) -> list[Change]:
        binary = self._given["binary"]
        if binary:
            lemond_binary.check(self._host, binary)
        if self._given["offline"]:
            lemond_offline.check(self._host, self._given["models"])
        unit = self._given["unit"].rstrip("\n") + "\n"
        desired = lemond_service.Desired(unit, lemond_config.text(self.settings), self._secrets())
        give_way = (
            [vllm_service.stop_and_remove(self.endpoint)]
            if daemon.installed(self._host) == daemon.VLLM
            else []
        )
        state = lemond_state.plan(self._host, binary or lemond_service.PROGRAM)
        current = lemond_service.read(self._host)
        return lemond_service.plan(current, desired, self.endpoint, give_way, first=state)

    def _secrets(self, vllm: bool = False) -> str:
        keys = ("LEMONADE_API_KEY", *(["VLLM_API_KEY"] if vllm else []))
        secrets = dict.fromkeys(keys, self.api_key)
        return lemond_config.secrets_text({**secrets, "HF_TOKEN": self._given["hf_token"]})

    def findings(self) -> list[dict[str, str]]:
        """What the running daemon makes of the settings. Raises Refused."""
        if self._given["daemon"] == daemon.VLLM:
            return []  # vLLM has no settings beside its command line
        return lemond_service.findings(self._host, Lemond(self.endpoint, self.api_key), self.settings)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = module.params
    host = Host()
    service = Service(host, given)

    def extra(changes: list[Change]) -> dict[str, Any]:
        # In check mode a service that would be restarted tells nothing about the new settings.
        settled = not (module.check_mode and changes)
        return {
            "daemon": given["daemon"],
            "endpoint": service.endpoint,
            "findings": service.findings() if settled else [],
            "drop_ins": list(systemd.show(host, daemon.UNITS[given["daemon"]]).drop_ins),
        }

    run_module(module, lemond_service.LAYER, service.plan, host, extra)


if __name__ == "__main__":
    main()
