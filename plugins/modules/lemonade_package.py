#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module lemonade_package: the package lemonade-server, from apt, the PPA or a .deb."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lemonade_package
short_description: Install Lemonade Server
version_added: "0.1.0"
description:
  - Installs the package C(lemonade-server) from the host's own apt sources, from its PPA on Ubuntu, or from
    one C(.deb).
  - The PPA is added as a deb822 source with its own key file. The key comes from the key server over HTTPS
    and is stored only with the wanted fingerprint.
  - The service that the package would start is held back; M(lemonade.deploy.lemonade_service) starts it.
options:
  source:
    description:
      - Where the package comes from.
      - V(auto) takes the host's own apt sources where they have it, else the PPA on Ubuntu.
    type: str
    choices: [auto, distro, ppa, deb]
    default: auto
  deb:
    description: Path on the host, or https URL, of a .deb for O(source=deb).
    type: str
    default: ""
  deb_sha256:
    description: Its SHA-256 in hex.
    type: str
    default: ""
  ppa:
    description: Owner and name of the PPA.
    type: str
    default: lemonade-team/stable
  ppa_url:
    description: Where PPAs are served.
    type: str
    default: https://ppa.launchpadcontent.net
  ppa_fingerprint:
    description: Fingerprint of the PPA's key. Empty asks Launchpad.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Predicts every change; asks apt on a private copy of its state.
  diff_mode:
    support: full
    description: Shows the source file.
author:
  - The lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: Install Lemonade Server
  lemonade.deploy.lemonade_package:

- name: Install a downloaded package
  lemonade.deploy.lemonade_package:
    source: deb
    deb: /root/lemonade-server.deb
    deb_sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
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
version:
  description: Version of the installed package; empty where it is not installed (yet).
  returned: success
  type: str
  sample: 2026.39.1-2
"""

from typing import Any

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import dpkg, lemonade_source, openpgp, paths
from ansible_collections.lemonade.deploy.plugins.module_utils.apt import PrivateApt
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change
from ansible_collections.lemonade.deploy.plugins.module_utils.distribution import read_distribution
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.module import run_module

ARGUMENTS: dict[str, Any] = {
    "source": {"type": "str", "choices": ["auto", "distro", "ppa", "deb"], "default": "auto"},
    "deb": {"type": "str", "default": ""},
    "deb_sha256": {"type": "str", "default": ""},
    "ppa": {"type": "str", "default": "lemonade-team/stable"},
    "ppa_url": {"type": "str", "default": "https://ppa.launchpadcontent.net"},
    "ppa_fingerprint": {"type": "str", "default": ""},
}


def installed(host: Host) -> dpkg.Package | None:
    """The package, where dpkg has it configured."""
    package = dpkg.packages(host).get(lemonade_source.PACKAGE)
    return package if package and package.state == "installed" else None


def has_candidate(host: Host) -> bool:
    """Whether the host's own sources offer the package; the lists are refreshed before a no."""
    with PrivateApt(host) as apt:
        if apt.candidate(lemonade_source.PACKAGE):
            return True
        apt.update()
        return apt.candidate(lemonade_source.PACKAGE) is not None


def key_fingerprints(host: Host) -> tuple[str, ...]:
    """Fingerprints in our key file; none where it is missing or damaged."""
    try:
        return tuple(key.fingerprint for key in openpgp.read_keys(host.read_bytes(paths.LEMONADE_KEY) or b""))
    except openpgp.Unreadable:
        return ()


def read(host: Host, desired: lemonade_source.Desired) -> lemonade_source.Current:
    """The current state, as far as the wish needs it."""
    there = installed(host) is not None
    source_text = host.read(paths.LEMONADE_SOURCE)
    ask = lemonade_source.needs_candidate(desired, there, source_text)
    return lemonade_source.Current(
        there,
        read_distribution(host),
        source_text,
        key_fingerprints(host),
        (host.read(paths.LEMONADE_DEB) or "").strip(),
        has_candidate(host) if ask else None,
    )


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = module.params
    host = Host()
    desired = lemonade_source.Desired(
        given["source"],
        given["deb"],
        given["deb_sha256"],
        given["ppa"],
        given["ppa_url"],
        given["ppa_fingerprint"],
    )

    def plan() -> list[Change]:
        return lemonade_source.plan(read(host, desired), desired)

    def extra(_changes: list[Change]) -> dict[str, Any]:
        package = installed(host)
        return {"version": package.version if package else ""}

    run_module(module, "lemonade_server", plan, host, extra)


if __name__ == "__main__":
    main()
