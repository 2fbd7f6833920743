#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module lemonade_service: unit, settings and secrets of lemond, and the running service."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lemonade_service
short_description: Run Lemonade Server by our own unit and settings
version_added: "0.1.0"
description:
  - Writes the whole unit to C(/etc/systemd/system), the settings to the file that C(LEMONADE_DEFAULTS_PATH)
    names, and the secrets to an environment file that only root can read. Drop-ins of the user are kept.
  - Restarts the service only where one of these changed, enables it, and waits until it answers.
  - Reads the effective settings back; what C(config.json) overrides is the finding C(config-overridden).
options:
  unit:
    description: Text of the unit file.
    type: str
    required: true
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
"""

RETURN = r"""
changes:
  description: What was or would be changed.
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
endpoint:
  description: URL of lemond as the host itself reaches it.
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

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import (
    lemond_config,
    lemond_service,
    systemd,
)
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.lemond_api import Lemond
from ansible_collections.lemonade.deploy.plugins.module_utils.module import run_module

ARGUMENTS: dict[str, Any] = {
    "unit": {"type": "str", "required": True},
    "host": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "default": 13305},
    "ctx_size": {"type": "int", "default": 4096},
    "global_timeout": {"type": "int", "default": 1800},
    "vllm_args": {"type": "str", "default": ""},
    "settings": {"type": "dict", "default": {}},
    "api_key": {"type": "str", "default": "", "no_log": True},
    "hf_token": {"type": "str", "default": "", "no_log": True},
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = module.params
    host = Host()
    settings = lemond_config.Settings(
        given["host"],
        given["port"],
        given["ctx_size"],
        given["global_timeout"],
        given["vllm_args"],
        given["settings"],
    )
    secrets = {"LEMONADE_API_KEY": given["api_key"], "HF_TOKEN": given["hf_token"]}
    endpoint = lemond_config.endpoint(settings.host, settings.port)

    def plan() -> list[Change]:
        lemond_config.check(settings, given["api_key"])
        unit = given["unit"].rstrip("\n") + "\n"
        lemond_config.check_unit(unit)
        desired = lemond_service.Desired(
            unit, lemond_config.text(settings), lemond_config.secrets_text(secrets)
        )
        return lemond_service.plan(lemond_service.read(host), desired, endpoint)

    def extra(changes: list[Change]) -> dict[str, Any]:
        # In check mode a service that would be restarted tells nothing about the new settings.
        settled = not (module.check_mode and changes)
        return {
            "endpoint": endpoint,
            "findings": lemond_service.findings(host, Lemond(endpoint, given["api_key"]), settings)
            if settled
            else [],
            "drop_ins": list(systemd.show(host, lemond_service.UNIT).drop_ins),
        }

    run_module(module, lemond_service.LAYER, plan, host, extra)


if __name__ == "__main__":
    main()
