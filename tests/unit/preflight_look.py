# SPDX-License-Identifier: Apache-2.0
"""preflight's look at a box of the tests, with a kernel on offer."""

from __future__ import annotations

from trees import GOOD_KERNEL, Tree

from lemonade_deploy.domain import preflight
from lemonade_deploy.domain.decision import Wishes
from lemonade_deploy.domain.facts import Facts, read_facts
from lemonade_deploy.domain.kernel_choice import KernelCandidate
from lemonade_deploy.domain.kernels import Forecast
from lemonade_deploy.domain.preflight import Report

HWE = KernelCandidate(GOOD_KERNEL, ("linux-generic-hwe-24.04",), "hwe", Forecast("fixed", "x"))

# A ROCm that AMD's table of kernels names: any other one is told (rocm-kernel-pair).
LISTED = "vllm0.22.0-rocm7.11.0"


def look(tree: Tree, wishes: Wishes | None = None) -> Report:
    """The report on a box; 20 GiB of free space are asked for."""

    def ask(_facts: Facts, _wishes: Wishes) -> tuple[list[KernelCandidate], list[str]]:
        return [HWE], []

    return preflight.look(tree.host, read_facts(tree.host), wishes or Wishes(release=LISTED), ask, 20)
