# SPDX-License-Identifier: Apache-2.0
"""What a GPU is called: gfx names, bundle families, support levels, PCI device ids."""

from __future__ import annotations

from typing import NamedTuple

AMD_VENDOR = 0x1002

# ISA -> asset family of lemonade-sdk/vllm-rocm releases (Lemonade's backend_versions.json and the
# targets its vLLM descriptor lists). A family names a bundle; an ISA that is missing here has none.
FAMILIES = {
    "gfx1100": "gfx110X",
    "gfx1101": "gfx110X",
    "gfx1102": "gfx110X",
    "gfx1103": "gfx110X",
    "gfx1150": "gfx1150",
    "gfx1151": "gfx1151",
    "gfx1200": "gfx120X",
    "gfx1201": "gfx120X",
}

# "validated": the release's qualification feed runs on it (gfx1151 only). "published": a bundle is
# released for it, but no qualification run has exercised it. "none": there is no bundle.
VALIDATED = frozenset({"gfx1151"})


class Device(NamedTuple):
    """One PCI device id of AMD's: its ISA, whether it sits in the processor, and its name."""

    gfx: str
    apu: bool
    name: str


def _devices(gfx: str, apu: bool, name: str, *ids: int) -> dict[int, Device]:
    return {device_id: Device(gfx, apu, name) for device_id in ids}


# PCI device ids (vendor 1002), from pci.ids and libdrm's amdgpu.ids. Ids that no bundle serves are
# here as well, so that a refusal can name the GPU it found.
DEVICES: dict[int, Device] = {
    **_devices("gfx1151", True, "Strix Halo", 0x1586),
    **_devices("gfx1150", True, "Strix Point", 0x150E),
    **_devices("gfx1152", True, "Krackan Point", 0x1114),
    **_devices("gfx1153", True, "Krackan Point 2", 0x1902),
    **_devices("gfx1103", True, "Phoenix", 0x15BF, 0x15C8, 0x164F),
    **_devices("gfx1103", True, "Hawk Point", 0x1900, 0x1901),
    **_devices("gfx1100", False, "Navi 31", 0x7448, 0x7449, 0x744A, 0x744B, 0x744C, 0x745E),
    **_devices("gfx1101", False, "Navi 32", 0x7460, 0x7461, 0x7470, 0x747E),
    **_devices("gfx1102", False, "Navi 33", 0x73F0, 0x7480, 0x7481, 0x7483, 0x7487, 0x7489, 0x748B),
    **_devices("gfx1102", False, "Navi 33", 0x7499, 0x749F),
    **_devices("gfx1200", False, "Navi 44", 0x7590),
    **_devices("gfx1201", False, "Navi 48", 0x7550, 0x7551),
    # No bundle:
    **_devices("gfx1030", False, "Navi 21", 0x73A1, 0x73A2, 0x73A3, 0x73A5, 0x73AB, 0x73AE, 0x73AF, 0x73BF),
    **_devices("gfx1031", False, "Navi 22", 0x73C3, 0x73CE, 0x73DF),
    **_devices("gfx1032", False, "Navi 23", 0x73E0, 0x73E1, 0x73E3, 0x73EF, 0x73FF),
    **_devices("gfx1033", True, "Van Gogh", 0x163F),
    **_devices("gfx1034", False, "Navi 24", 0x7421, 0x7422, 0x7423, 0x7424, 0x743F),
    **_devices("gfx1035", True, "Rembrandt", 0x164D, 0x1681),
    **_devices("gfx1036", True, "Raphael", 0x164E, 0x13C0),
    **_devices("gfx1037", True, "Mendocino", 0x1506),
    **_devices("gfx90c", True, "Renoir/Cezanne", 0x1636, 0x1638, 0x15E7),
    **_devices("gfx900", False, "Vega 10", *range(0x6860, 0x686F), 0x687F),
    **_devices("gfx906", False, "Vega 20", 0x66A0, 0x66A1, 0x66A2, 0x66A3, 0x66A7, 0x66AF),
    **_devices("gfx908", False, "Instinct MI100", 0x7388, 0x738C, 0x738E),
    **_devices("gfx90a", False, "Instinct MI200", 0x7408, 0x740C, 0x740F),
    **_devices("gfx942", False, "Instinct MI300", 0x74A0, 0x74A1, 0x74A2, 0x74A5, 0x74A9, 0x74B5, 0x74B9),
    **_devices("gfx950", False, "Instinct MI350", 0x75A0, 0x75A3, 0x75A8),
}


def decode(gfx_target_version: int) -> str:
    """gfx name of KFD's decimal ``gfx_target_version``: minor and stepping are written in hex.

    90010 is gfx90a, 110501 gfx1151. Raises ValueError for 0 (a CPU node) and for numbers that
    no GPU can have.
    """
    major, minor, step = (
        gfx_target_version // 10000,
        gfx_target_version // 100 % 100,
        gfx_target_version % 100,
    )
    if not 0 < major < 100 or minor > 15 or step > 15:
        raise ValueError(f"{gfx_target_version} is no gfx_target_version")
    return f"gfx{major}{minor:x}{step:x}"


def encode(gfx: str) -> int:
    """KFD's ``gfx_target_version`` for a gfx name; the reverse of :func:`decode`."""
    digits = gfx.removeprefix("gfx")
    if len(digits) < 3 or not digits[:-2].isdigit():
        raise ValueError(f"{gfx} is no gfx name")
    return int(digits[:-2]) * 10000 + int(digits[-2], 16) * 100 + int(digits[-1], 16)


def family(gfx: str) -> str | None:
    """Bundle family of an ISA, or None where no bundle is published for it."""
    return FAMILIES.get(gfx)


def support(gfx: str) -> str:
    """Support level of an ISA: ``validated``, ``published`` or ``none``."""
    if gfx in VALIDATED:
        return "validated"
    return "published" if gfx in FAMILIES else "none"
