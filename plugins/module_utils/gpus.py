# SPDX-License-Identifier: Apache-2.0
"""One GPU, told from three sides: the PCI bus (is it there), KFD (does its driver work), DRM (memory)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import cwsr, firmware_facts, gfx, kfd, pci
from .host import Host

DRM = "/sys/class/drm"
DRIVER = "amdgpu"
_SLOT = re.compile(r"^PCI_SLOT_NAME=(\S+)", re.MULTILINE)


class Gpu(NamedTuple):
    """A GPU as the facts, the JSON of runs and doctor show it. Sizes in bytes.

    ``driver`` is in-tree, dkms or none (no KFD node). ``node`` is KFD's number or None. ``cwsr`` is
    ok, missing, old-vgpr or wrong; ``cwsr_why`` says it in words. ``bound`` is the driver that PCI shows.
    """

    pci: str
    device_id: str
    name: str
    gfx: str
    family: str | None
    apu: bool
    support: str
    node: int | None
    cu_count: int | None
    driver: str
    cwsr_size: int | None
    ctl_stack_size: int | None
    expected_cwsr_size: int | None
    expected_ctl_stack_size: int | None
    cwsr: str
    cwsr_why: str
    cwsr_above: bool
    kfd_gfx: str | None
    vram: int | None
    gtt: int | None
    mes_firmware: int | None
    listed: bool
    bound: str | None
    mes_source: str = ""

    @property
    def given_away(self) -> bool:
        """Whether another driver than amdgpu holds it (vfio-pci, pci-stub): somebody's wish."""
        return self.node is None and self.bound not in (None, DRIVER)

    def public(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return self._asdict()


def _drm_device(host: Host, gpu: pci.PciGpu) -> str | None:
    """The folder that holds the amdgpu driver's own attributes of a GPU, or None."""
    own = f"{pci.DEVICES_DIR}/{gpu.address}"
    if host.exists(f"{own}/mem_info_vram_total"):
        return own
    for name in host.listdir(DRM):
        if not name.startswith("card") or "-" in name:
            continue
        device = f"{DRM}/{name}/device"
        slot = _SLOT.search(host.read(f"{device}/uevent") or "")
        if slot is not None and slot[1] == gpu.address:
            return device
    return None


def join(gpus: Sequence[pci.PciGpu], nodes: Sequence[kfd.Node]) -> dict[str, kfd.Node]:
    """KFD's node for each PCI address: by address, then by device id, then the only one of an ISA."""
    joined: dict[str, kfd.Node] = {}
    left = list(nodes)

    def take(gpu: pci.PciGpu, matches: list[kfd.Node]) -> None:
        if gpu.address not in joined and matches:
            joined[gpu.address] = matches[0]
            left.remove(matches[0])

    for gpu in gpus:
        take(gpu, [node for node in left if node.pci == gpu.address])
    for gpu in gpus:
        take(gpu, [node for node in left if node.pci is None and node.device_id == gpu.device_id])
    for gpu in gpus:
        isa = gpu.known.gfx if gpu.known else None
        take(gpu, [node for node in left if node.pci is None and node.device_id is None and node.gfx == isa])
    return joined


def _one(host: Host, gpu: pci.PciGpu, node: kfd.Node | None, origin: str) -> Gpu:
    # The device table names the ISA; KFD's word counts for a device that the table does not list.
    isa = gpu.known.gfx if gpu.known else (node.gfx if node and node.gfx else "unknown")
    cus = node.cu_count if node else None
    wanted = cwsr.expected(isa, cus)
    if node is None:
        verdict = cwsr.Verdict("missing", "no driver shows this GPU")
    else:
        verdict = cwsr.judge(isa, cus, node.cwsr_size, node.ctl_stack_size)
    device = _drm_device(host, gpu)
    vram, gtt = (
        pci.number(host.value(f"{device}/{attribute}")) if device else None
        for attribute in ("mem_info_vram_total", "mem_info_gtt_total")
    )
    firmware, told = firmware_facts.mes_version(host, gpu.address, device) if node else (None, "")
    return Gpu(
        pci=gpu.address,
        device_id=f"{gpu.device_id:04x}",
        name=gpu.known.name if gpu.known else "",
        gfx=isa,
        family=gfx.family(isa),
        # A device that is not listed is taken for a card: nothing that only suits an APU is done to it.
        apu=gpu.known.apu if gpu.known else False,
        support=gfx.support(isa),
        node=node.number if node else None,
        cu_count=cus,
        driver=origin if node else "none",
        cwsr_size=node.cwsr_size if node else None,
        ctl_stack_size=node.ctl_stack_size if node else None,
        expected_cwsr_size=wanted.cwsr_size if wanted else None,
        expected_ctl_stack_size=wanted.ctl_stack_size if wanted else None,
        cwsr=verdict.verdict,
        cwsr_why=verdict.why,
        cwsr_above=verdict.above,
        kfd_gfx=node.gfx if node else None,
        vram=vram,
        gtt=gtt,
        mes_firmware=firmware,
        listed=gpu.known is not None,
        bound=gpu.driver,
        mes_source=told,
    )


def survey(host: Host, origin: str) -> tuple[list[Gpu], list[kfd.Node]]:
    """All AMD GPUs of the host, and the KFD GPU nodes that no PCI device explains.

    *origin* is the loaded amdgpu module's (module ``amdgpu_module``).
    """
    found, nodes = pci.read_gpus(host), kfd.read_nodes(host)
    joined = join(found, nodes)
    taken = {node.number for node in joined.values()}
    stray = [node for node in nodes if node.number not in taken]
    return [_one(host, gpu, joined.get(gpu.address), origin) for gpu in found], stray


def read_gpus(host: Host, origin: str) -> list[Gpu]:
    """All AMD GPUs of the host; see :func:`survey`."""
    return survey(host, origin)[0]


def supported(gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs for which a bundle is published; the one that serves comes first.

    Discrete ones come before APUs: Lemonade prefers them as well, and the bundle must be of the
    family that Lemonade looks for. One that was given to somebody else (vfio-pci, a guest's) does not
    count where another is left.
    """
    published = sorted((gpu for gpu in gpus if gpu.family), key=lambda gpu: (gpu.apu, gpu.pci))
    return [gpu for gpu in published if not gpu.given_away] or published
