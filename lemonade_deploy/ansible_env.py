# SPDX-License-Identifier: Apache-2.0
"""Ansible's settings for our runs: fixed ones, and defaults that the user's own win over."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lemonade_deploy.content import link_collection
from lemonade_deploy.inventory import SYSTEM_PYTHON, config_file, read_config

# Ours whatever the user has: the roles rely on them.
_FIXED = {
    "ANSIBLE_INJECT_FACT_VARS": "False",  # roles read ansible_facts[...]
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True",
    "ANSIBLE_RETRY_FILES_ENABLED": "False",
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_DEVEL_WARNING": "False",
    "PYTHONUNBUFFERED": "1",
}
# Environment variable → (key in ansible.cfg, our value). ansible-runner turns host key
# checking off where the variable is not set, so it has to be set here in any case.
_DEFAULTS = {
    "ANSIBLE_HOST_KEY_CHECKING": ("host_key_checking", "True"),
    "ANSIBLE_PIPELINING": ("pipelining", "True"),
    "ANSIBLE_PYTHON_INTERPRETER": ("interpreter_python", SYSTEM_PYTHON),
    # Modules write their arguments to the host's syslog else, units and settings included.
    "ANSIBLE_NO_TARGET_SYSLOG": ("no_target_syslog", "True"),
    "ANSIBLE_TIMEOUT": ("timeout", "20"),
    # A load may say nothing for 30 minutes: keep the connection alive, notice a dead one in 2.
    "ANSIBLE_SSH_ARGS": (
        "ssh_args",
        "-C -o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=15 -o ServerAliveCountMax=8",
    ),
    "ANSIBLE_SSH_RETRIES": ("retries", "2"),
}


# Lies beside an inventory and is none. A pattern, not an extension: Ansible's extensions have defaults of
# their own that would have to be repeated; its patterns have none.
_IGNORED = r"\.lock$"
_TIED = "lemonade.deploy.tied"


def _ignored(config: dict[str, dict[str, str]]) -> str:
    """ANSIBLE_INVENTORY_IGNORE_REGEX: the user's own patterns for a folder inventory, and the lock file."""
    theirs = os.environ.get("ANSIBLE_INVENTORY_IGNORE_REGEX") or (
        config.get("defaults", {}).get("inventory_ignore_patterns")
        or config.get("inventory", {}).get("ignore_patterns")
    )
    return f"{theirs},{_IGNORED}" if theirs else _IGNORED


def _callbacks(config: dict[str, dict[str, str]]) -> str:
    """ANSIBLE_CALLBACKS_ENABLED: the user's own, and ours, which ends Ansible when we are killed."""
    theirs = os.environ.get("ANSIBLE_CALLBACKS_ENABLED") or config.get("defaults", {}).get(
        "callbacks_enabled"
    )
    return f"{theirs},{_TIED}" if theirs else _TIED


def environment(private: Path, folder: Path) -> dict[str, str]:
    """The variables to add to the environment of ansible-playbook and of the probe.

    The order of precedence is the user's environment, the user's ansible.cfg, ours.
    """
    config = read_config(folder)
    collections = str(link_collection(private / "collections"))
    theirs = os.environ.get("ANSIBLE_COLLECTIONS_PATH") or config.get("defaults", {}).get(
        "collections_path", "~/.ansible/collections:/usr/share/ansible/collections"
    )
    settings = {
        **_FIXED,
        "ANSIBLE_COLLECTIONS_PATH": f"{collections}:{theirs}",
        "ANSIBLE_INVENTORY_IGNORE_REGEX": _ignored(config),
        "ANSIBLE_CALLBACKS_ENABLED": _callbacks(config),
        "LEMONADE_DEPLOY_PID": str(os.getpid()),
        # ansible-playbook stands beside the interpreter that runs us, PATH or not.
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
    }
    for variable, (key, value) in _DEFAULTS.items():
        # pipelining and retries may stand in more than one section
        written = next((keys[key] for keys in config.values() if key in keys), None)
        settings[variable] = os.environ.get(variable) or written or value
    path = config_file(folder)
    if path is not None:
        settings["ANSIBLE_CONFIG"] = str(path)
    return settings
