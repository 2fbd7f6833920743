# SPDX-License-Identifier: Apache-2.0
"""A mainline kernel on a simulated host: from the signed list to the kernel that runs."""

from __future__ import annotations

import pytest
import yaml

from lemonade_deploy.lab import Lab, catalog

from .kit import Ran, changed, host_of, kit

pytestmark = pytest.mark.lab

HOST = "it-mainline"
RELEASE = catalog.MAINLINE_KERNEL.release
LAYERS = "amdgpu_driver,kernel,gpu_memory,activate"


def run(lab: Lab, *more: str) -> Ran:
    """The layers up to the proof, with the kernel from mainline."""
    run = ("site.yml", "-i", str(lab.inventory_path), "-l", HOST, "--json", "--tags", LAYERS)
    return kit(*run, "-e", "kernel_source=mainline", *more)


def test_a_dirty_box_gets_a_mainline_kernel_that_the_pinned_key_vouches_for(lab: Lab) -> None:
    lab.up_all({HOST: "strix-halo-dirty"}, "light")
    variables = yaml.safe_load(lab.inventory_path.read_text(encoding="utf-8"))["lemonade"]["vars"]
    # Another key than the one that signs: refused before anything is changed.
    stranger = variables["lemonade_server_ppa_fingerprint"]
    refused = host_of(run(lab, "-e", f"kernel_mainline_key_fingerprint={stranger}"), HOST)
    assert (refused["failure"]["layer"], refused["changed"]) == ("preflight", [])
    assert f"is not signed by {stranger}" in refused["failure"]["message"]

    predicted = host_of(run(lab, "--check"), HOST)
    ran = run(lab)
    host = host_of(ran, HOST)
    assert (ran.rc, host["failure"]) == (0, None)
    assert changed(host) == changed(predicted)
    assert ("kernel", "kernel", "install") in changed(host)
    # The newest version failed to build; of the two builds of the one before, the later is taken.
    assert host["kernel"] == RELEASE == lab.exec(HOST, ["uname", "-r"]).stdout.strip()
    assert [(gpu["driver"], gpu["cwsr"]) for gpu in host["gpu"]] == [("in-tree", "ok")]
    shown = lab.exec(HOST, ["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n"]).stdout
    ours = [line for line in shown.splitlines() if "061836" in line]
    version = catalog.MAINLINE_KERNEL.version
    assert ours == [
        f"linux-image-unsigned-{RELEASE} {version} installed",
        f"linux-modules-{RELEASE} {version} installed",
    ]
    assert lab.exec(HOST, ["ls", "/var/cache/lemonade-deploy"]).stdout == ""
    again = run(lab)
    assert (again.rc, host_of(again, HOST)["changed"]) == (0, [])
