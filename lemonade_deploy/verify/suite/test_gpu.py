# SPDX-License-Identifier: Apache-2.0
"""The GPU as its driver shows it: the node is there, and its save areas have the right sizes.

Presence of the two numbers is no proof: a kernel without the VGPR fix exports 13942784 for a
40-CU gfx1151, and the GPU then faults. The formula is the kernel's (amdkfd/kfd_queue.c).
"""

from __future__ import annotations

from testinfra.host import Host  # type: ignore[import-untyped]

NODES = "/sys/class/kfd/kfd/topology/nodes"
FIXED_VGPR = 0x60000  # bytes of vector registers a CU, since "bump minimum vgpr size for gfx1151"
SGPR, LDS, HWREG = 0x4000, 0x10000, 0x1000


def align(value: int) -> int:
    return (value + 4095) // 4096 * 4096


def expected(cu: int) -> tuple[int, int]:
    """cwsr_size and ctl_stack_size of a gfx11.5 part with *cu* compute units."""
    control = align(40 + cu * 32 * 12 + 8)
    return align(cu * (FIXED_VGPR + SGPR + LDS + HWREG)) + control, control


def gpu_nodes(host: Host) -> dict[str, dict[str, int]]:
    """Numbers of each KFD node that is a GPU."""
    text = host.run(f"grep -H . {NODES}/*/properties").stdout
    nodes: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        path, _colon, pair = line.partition(":")
        name, _space, value = pair.strip().partition(" ")
        if value.lstrip("-").isdigit():
            nodes.setdefault(path.split("/")[-2], {})[name] = int(value)
    return {name: node for name, node in nodes.items() if node.get("gfx_target_version")}


def test_the_driver_shows_a_gpu(host: Host) -> None:
    assert gpu_nodes(host), f"no GPU below {NODES}: its driver is not loaded"


def test_save_areas_of_gfx1151(host: Host) -> None:
    wrong = []
    for name, node in gpu_nodes(host).items():
        if node["gfx_target_version"] != 110501:
            continue
        cu = node["simd_count"] // node.get("simd_per_cu", 2) // max(node.get("num_xcc", 1), 1)
        found = (node.get("cwsr_size", 0), node.get("ctl_stack_size", 0))
        wanted = expected(cu)
        # A newer kernel may save more; less is what faults.
        if found[0] < wanted[0] or found[1] < wanted[1]:
            wrong.append(f"node {name} with {cu} CUs: {found}, wanted {wanted}")
    assert not wrong, "; ".join(wrong)
