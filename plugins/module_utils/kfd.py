# SPDX-License-Identifier: Apache-2.0
"""KFD's topology in sysfs: one node a processor, plain "name value" lines."""

from __future__ import annotations

import re
from typing import NamedTuple

from . import gfx as gfx_names
from .cwsr import cu_count
from .host import Host

NODES = "/sys/class/kfd/kfd/topology/nodes"
_LINE = re.compile(r"^(\w+) (-?\d+)\s*$", re.MULTILINE)


class Node(NamedTuple):
    """One GPU node of the topology; sizes in bytes, None where a line is absent.

    ``gfx`` is None where ``gfx_target_version`` is no version of any GPU.
    """

    number: int
    path: str
    gfx_target_version: int
    gfx: str | None
    cu_count: int | None
    cwsr_size: int | None
    ctl_stack_size: int | None
    vendor_id: int | None
    device_id: int | None
    pci: str | None
    render_minor: int | None


def properties(text: str) -> dict[str, int]:
    """The numbers of a ``properties`` file; lines of any other shape are passed over."""
    return {name: int(value) for name, value in _LINE.findall(text)}


def _pci_address(values: dict[str, int]) -> str | None:
    """PCI address from ``domain`` and ``location_id`` (bus << 8 | device << 3 | function)."""
    location = values.get("location_id")
    if not location or location < 0:
        return None
    domain = max(values.get("domain", 0), 0)
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def parse_node(number: int, path: str, text: str) -> Node | None:
    """A GPU node from the text of its ``properties``, or None for a CPU node."""
    values = properties(text)
    version = values.get("gfx_target_version", 0)
    if version == 0 and values.get("simd_count", 0) <= 0:
        return None
    try:
        name: str | None = gfx_names.decode(version)
    except ValueError:
        name = None
    minor = values.get("drm_render_minor", -1)
    return Node(
        number=number,
        path=path,
        gfx_target_version=version,
        gfx=name,
        cu_count=cu_count(
            values.get("simd_count", 0), values.get("simd_per_cu", 0), values.get("num_xcc", 1)
        ),
        cwsr_size=values.get("cwsr_size"),
        ctl_stack_size=values.get("ctl_stack_size"),
        vendor_id=values.get("vendor_id"),
        device_id=values.get("device_id"),
        pci=_pci_address(values),
        render_minor=minor if minor > 0 else None,
    )


def read_nodes(host: Host) -> list[Node]:
    """All GPU nodes, by number. Empty where there is no KFD or no GPU under it."""
    nodes = []
    for name in sorted(filter(str.isdigit, host.listdir(NODES)), key=int):
        path = f"{NODES}/{name}/properties"
        text = host.read(path)
        node = parse_node(int(name), path, text) if text else None
        if node is not None:
            nodes.append(node)
    return nodes
