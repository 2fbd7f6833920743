#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Module kernel: install the decided kernel and have GRUB boot it once."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel
short_description: Install a kernel and have it booted once
version_added: "0.1.0"
description:
  - Executes the kernel part of the decision that M(lemonade.deploy.preflight) computed.
  - Before any package is unpacked GRUB gets the running kernel as its saved default, read back. Then the
    kernel is installed. M(lemonade.deploy.activate) boots it once and makes it the default after the proof;
    until then every plain boot takes the old one, also after a panic.
  - Refuses before anything is installed where that cannot work, because another boot loader than GRUB
    starts the host or GRUB cannot write on what holds C(/boot/grub), and names the manual way.
  - A kernel that is installed but does not run is booted in the same way.
  - A kernel that runs and has no amdgpu (minimal installs of Ubuntu lack linux-modules-extra) gets it;
    nothing is tried then.
options:
  release:
    description: The kernel that is to run, as C(uname -r) shows it. Empty keeps the running one.
    type: str
    default: ""
  packages:
    description: The packages that bring it, for example a meta package. They are marked manual.
    type: list
    elements: str
    default: []
  debs:
    description:
      - The packages of a mainline build, as M(lemonade.deploy.preflight) read them from its signed list.
      - They are fetched into C(/var/cache/lemonade-deploy/kernel) and each is compared with its SHA-256;
        only when all of them are verified apt installs the files.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the package.
        type: str
        required: true
      url:
        description: Its address, C(file://) for a folder on the host.
        type: str
        required: true
      sha256:
        description: Its digest.
        type: str
        required: true
      size:
        description: Its size in bytes, V(0) where it is not known.
        type: int
        default: 0
  target:
    description: apt's target release for the packages, for example C(trixie-backports).
    type: str
    default: ""
  apt_source:
    description: An apt source that has the packages, added first; C(path) and C(content).
    type: dict
    suboptions:
      path:
        description: The file.
        type: str
        required: true
      content:
        description: Its text.
        type: str
        required: true
  dkms:
    description: Whether AMD's DKMS driver must be built for it; its headers are installed with it then.
    type: bool
    default: false
  hold:
    description:
      - Whether the metapackages that pull kernels in are held once a kernel was installed by this module.
        V(false) releases what this module holds.
    type: bool
    default: true
  repaired:
    description:
      - Whether an earlier task finishes what dpkg left half-way, so that check mode does not predict another
        installation of a kernel whose package is among it.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Predicts every change; apt is asked on a private copy of its state.
  diff_mode:
    support: full
    description: Shows which kernel GRUB boots by default.
author:
  - The lemonade-deploy authors (@lemonade-deploy)
"""

EXAMPLES = r"""
- name: Boot the HWE kernel once
  lemonade.deploy.kernel:
    release: 7.0.0-31-generic
    packages: [linux-generic-hwe-24.04]
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
activation:
  description: What must take effect at boot.
  returned: success
  type: dict
  contains:
    initramfs:
      description: Whether initramfs images must be rebuilt.
      type: bool
    reboot:
      description: Why a reboot is needed; empty where none is.
      type: list
      elements: str
    kernel:
      description: Kernel to boot once and to make the default afterwards.
      type: str
"""

import ansible_collections.lemonade.deploy.plugins.module_utils.compile_once as _  # noqa: F401  first
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lemonade.deploy.plugins.module_utils import (
    boot_gate,
    boot_loader,
    dpkg,
    grub,
    kernel_hold,
    kernel_plan,
    trial_menu,
)
from ansible_collections.lemonade.deploy.plugins.module_utils.activation import Due
from ansible_collections.lemonade.deploy.plugins.module_utils.change import Change
from ansible_collections.lemonade.deploy.plugins.module_utils.host import Host
from ansible_collections.lemonade.deploy.plugins.module_utils.kernel_choice import AptSource, Deb
from ansible_collections.lemonade.deploy.plugins.module_utils.kernel_plan import KernelState, KernelWish
from ansible_collections.lemonade.deploy.plugins.module_utils.module import SYSTEM_LOCK, run_module


class Kernel:
    """Plans the wanted kernel, and keeps what the first plan needs at boot."""

    def __init__(self, host: Host, wish: KernelWish, repaired: bool = False) -> None:
        self.host = host
        self.wish = wish
        self.repaired = repaired
        self.due: Due | None = None

    def read(self) -> KernelState:
        """The host as it is now."""
        host, wish = self.host, self.wish
        packages = dpkg.packages(host)
        known = [name for name, package in packages.items() if package.state == "installed"]
        images = [packages.get(f"linux-image-{kind}{wish.release}") for kind in ("", "unsigned-")]
        unfinished = any(package.unfinished for package in images if package is not None)
        installed = kernel_plan.is_installed(host, wish)
        return KernelState(
            running=host.running_kernel(),
            installed=installed or (self.repaired and unfinished),
            grub=grub.read(host),
            missing=kernel_plan.missing_packages(host, wish, known),
            source=host.read(wish.apt_source.path) if wish.apt_source else None,
            entries=trial_menu.read(host),
            held=kernel_hold.read(host),
        )

    def plan(self) -> list[Change]:
        """The plan for the host as it is now."""
        running = self.host.running_kernel()
        stays = self.wish.release in ("", running)
        if not self.wish.release or (stays and kernel_plan.is_installed(self.host, self.wish)):
            self.due = self.due or Due()
            # A converged host costs one look at one file here.
            state = KernelState(running, True, None, held=kernel_hold.read(self.host))
            return kernel_plan.plan(state, self.wish)
        state = self.read()
        if self.due is None and not stays:
            boot_loader.demand(self.host)
            boot_gate.demand_root(self.host, self.wish.release)
        changes = kernel_plan.plan(state, self.wish)
        if self.due is None:
            self.due = kernel_plan.due(state, self.wish)
            if any(change.object == "kernel" for change in changes):
                kernel_plan.demand_space(self.host)
                kernel_plan.simulate(self.host, self.wish, state.missing, state.held)
        return changes


_DEB = {
    "name": {"type": "str", "required": True},
    "url": {"type": "str", "required": True},
    "sha256": {"type": "str", "required": True},
    "size": {"type": "int", "default": 0},
}


def wish_of(parameters: dict) -> KernelWish:
    """The wish in the module's arguments."""
    source = parameters["apt_source"]
    return KernelWish(
        parameters["release"],
        tuple(parameters["packages"]),
        parameters["dkms"],
        tuple(Deb(**deb) for deb in parameters["debs"]),
        parameters["target"],
        AptSource(**source) if source else None,
        parameters["hold"],
    )


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "release": {"type": "str", "default": ""},
            "packages": {"type": "list", "elements": "str", "default": []},
            "debs": {"type": "list", "elements": "dict", "default": [], "options": _DEB},
            "target": {"type": "str", "default": ""},
            "apt_source": {
                "type": "dict",
                "options": {
                    "path": {"type": "str", "required": True},
                    "content": {"type": "str", "required": True},
                },
            },
            "dkms": {"type": "bool", "default": False},
            "hold": {"type": "bool", "default": True},
            "repaired": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    kernel = Kernel(Host(), wish_of(module.params), module.params["repaired"])

    def extra(_changes: list[Change]) -> dict:
        return {"activation": (kernel.due or Due()).public()}

    run_module(module, kernel_plan.LAYER, kernel.plan, kernel.host, extra, SYSTEM_LOCK)


if __name__ == "__main__":
    main()
