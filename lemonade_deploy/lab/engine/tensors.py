# SPDX-License-Identifier: Apache-2.0
"""Writers for the two model file formats, standard library only.

safetensors: 8 bytes header length, JSON header, data (its format description).
GGUF 3: magic, counts, typed key-value pairs, tensor table, aligned data (ggml's docs/gguf.md).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GGUF_ALIGNMENT = 32
GGUF_F32, GGUF_F16 = 0, 1
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True)
class Tensor:
    """A row-major tensor of exactly representable numbers (8-bit integers times a power of two)."""

    shape: tuple[int, ...]
    values: Sequence[float]

    def float16(self) -> bytes:
        """Little-endian IEEE half precision."""
        return struct.pack(f"<{len(self.values)}e", *self.values)

    def float32(self) -> bytes:
        """Little-endian IEEE single precision."""
        return struct.pack(f"<{len(self.values)}f", *self.values)


def safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file with *tensors* as float16."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name in sorted(tensors):
        raw = tensors[name].float16()
        shape = list(tensors[name].shape)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


Value = str | int | float | bool | Sequence[str] | Sequence[int]


def gguf(metadata: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> bytes:
    """A GGUF file; one-dimensional tensors as float32, the others as float16."""
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        head += _string(key) + _typed(value)
    data = bytearray()
    for name, tensor in tensors.items():
        flat = len(tensor.shape) == 1
        raw = tensor.float32() if flat else tensor.float16()
        head += _string(name) + struct.pack("<I", len(tensor.shape))
        head += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        head += struct.pack("<IQ", GGUF_F32 if flat else GGUF_F16, len(data))
        data += raw + bytes(-len(raw) % GGUF_ALIGNMENT)
    return bytes(head) + bytes(-len(head) % GGUF_ALIGNMENT) + bytes(data)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if value and isinstance(value[0], str):
        items = b"".join(_string(str(item)) for item in value)
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + items
    numbers = struct.pack(f"<{len(value)}i", *(int(item) for item in value))
    return struct.pack("<IIQ", _ARRAY, _I32, len(value)) + numbers
