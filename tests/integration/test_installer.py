# SPDX-License-Identifier: Apache-2.0
"""vllm_rocm_installer: lemond installs vLLM itself, and what it says is compared with the disk."""

from __future__ import annotations

import pytest

from lemonade_deploy.lab import Lab

from .kit import changed, host_of, kit

pytestmark = [pytest.mark.lab, pytest.mark.full]

HOST = "it-installer"
BY_LEMOND = ("-e", "vllm_rocm_installer=lemond")


def test_lemond_installs_vllm_and_answers_and_a_second_run_changes_nothing(lab: Lab) -> None:
    lab.up([HOST], "strix-halo-clean", "light")
    where = ("-i", str(lab.inventory_path), "-l", HOST, "--json")
    checked = host_of(kit("site.yml", *where, *BY_LEMOND, "--check"), HOST)
    assert ("vllm_rocm", "bundle", "install") in changed(checked), checked
    ran = host_of(kit("site.yml", *where, *BY_LEMOND), HOST)
    assert ran["failure"] is None, ran["failure"]
    assert ran["inference"]["content"].strip()
    # The kit itself laid nothing down.
    assert lab.exec(HOST, ["test", "-e", "/opt/lemonade-deploy/vllm-rocm/current"]).rc == 1
    again = host_of(kit("site.yml", *where, *BY_LEMOND), HOST)
    assert (again["status"], again["changed"]) == ("ok", []), again
    verified = kit("verify", "-i", str(lab.inventory_path), "-l", HOST, "--json")
    assert verified.rc == 0, verified.stdout[-3000:]


def test_there_is_no_way_back_through_lemond(lab: Lab) -> None:
    lab.up([HOST], "strix-halo-clean", "light")
    ran = kit("rollback", "--bundle", "-i", str(lab.inventory_path), "-l", HOST, "--json")
    assert ran.rc == 1
    assert "lemond" in host_of(ran, HOST)["failure"]["message"]
