# SPDX-License-Identifier: Apache-2.0
"""Whether a model fits: its weights and the KV cache into the GPU's memory, its context into the cache.

Only what cannot work is refused. On an APU the GPU's memory is the carve-out (VRAM) and the share of the
system's memory it may map (GTT); how much of either a program gets is the driver's business, so the sum
counts. vLLM's own needs beside weights and cache are not known before it runs, and not counted.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .disk import GIB
from .host import Host
from .memory import PAGE_BYTES, mem_total_kib
from .refusal import Refused

# lemond passes it on consumer GPUs unless the user gives a size of his own (vllm_server.cpp:411-493).
LEMOND_KV_CACHE = "4G"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Keys of config.json that speak of layers with another cache, or none.
_ODD_LAYERS = ("sliding_window", "linear_num_key_heads", "kv_lora_rank", "ssm_cfg", "attn_layer_period")
_ELEMENT = 2  # bytes: the cache holds fp16 or bf16 unless --kv-cache-dtype says otherwise


@dataclass(frozen=True)
class Memory:
    """Bytes that the GPU may use, and in words where they are."""

    size: int
    words: str


def gpu_memory(host: Host, gtt_pages: int | None = None) -> Memory | None:
    """The largest GPU's memory; ``gtt_pages`` is the limit that the next boot sets. None: nobody knows."""
    found = []
    for path in host.glob("/sys/class/drm/renderD*/device/mem_info_vram_total"):
        vram = int(host.value(path) or 0)
        gtt = int(host.value(path.replace("vram_total", "gtt_total")) or 0)
        folder = path.rpartition("/")[0]
        if host.exists(f"{folder}/board_info"):  # a card of its own (system_info.cpp:3622-3626)
            found.append(Memory(vram, f"{gib(vram)} VRAM"))
            continue
        gtt = max(gtt, (gtt_pages or 0) * PAGE_BYTES)
        size = min(vram + gtt, vram + mem_total_kib(host) * 1024)
        found.append(Memory(size, f"{gib(vram)} VRAM and {gib(size - vram)} GTT"))
    known = [memory for memory in found if memory.size]
    return max(known, key=lambda memory: memory.size) if known else None


def gib(size: float) -> str:
    """Bytes for people."""
    return f"{size / GIB:.1f} GiB"


def arguments(*lines: str | None) -> dict[str, str]:
    """The last value of each ``--name`` in lines of arguments; "" for a flag."""
    found: dict[str, str] = {}
    for line in lines:
        try:
            words = shlex.split(line or "")
        except ValueError:
            continue  # an open quote: vLLM will say so
        for at, word in enumerate(words):
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                following = words[at + 1] if at + 1 < len(words) else ""
                found[name] = value if equals else ("" if following.startswith("--") else following)
    return found


def kv_cache_bytes(given: Mapping[str, str]) -> int | None:
    """Bytes of the KV cache by the arguments; None where vLLM takes a share of all memory."""
    if "--gpu-memory-utilization" in given and "--kv-cache-memory-bytes" not in given:
        return None
    found = re.fullmatch(
        r"(\d+\.?\d*)([kKmMgGT]?)(?:i?B)?", given.get("--kv-cache-memory-bytes", LEMOND_KV_CACHE)
    )
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def kv_bytes_per_token(config: Mapping[str, Any]) -> int | None:
    """Bytes of KV cache a token needs; None for models whose layers are not all of the same plain kind."""
    text = _text_part(config)
    kinds = text.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        return None
    if any(text.get(name) for name in _ODD_LAYERS):
        return None
    layers, heads = _count(text, "num_hidden_layers"), _count(text, "num_attention_heads")
    wide = _count(text, "head_dim") or _count(text, "hidden_size") // (heads or 1)
    return 2 * layers * (_count(text, "num_key_value_heads") or heads) * wide * _ELEMENT or None


def _text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a model that sees or hears, too, stand one level deeper."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else dict(config)


def _count(config: Mapping[str, Any], key: str) -> int:
    """A number of a model's file; what is none counts as missing."""
    found = config.get(key)
    return found if isinstance(found, int) and found > 0 else 0


def check(
    name: str,
    weights: int,
    config: str | None,
    given: Mapping[str, str],
    ctx_size: int,
    memory: Memory | None,
) -> None:
    """Refused where it cannot be loaded; sizes in bytes, ``ctx_size`` in tokens (-1: lemond's choice)."""
    cache = kv_cache_bytes(given)
    if memory is not None and weights + (cache or 0) > memory.size:
        raise Refused(
            f"{name} does not fit: {gib(weights)} of weights"
            + (f" and {gib(cache)} of KV cache" if cache else "")
            + f", the GPU has {gib(memory.size)} ({memory.words}).",
            "Choose a smaller model, or raise gpu_memory_gtt_gib.",
        )
    told = _object(config)
    per_token = kv_bytes_per_token(told)
    if per_token and cache and ctx_size > 0 and "--kv-cache-dtype" not in given:
        need = per_token * ctx_size
        if need > cache:
            raise Refused(
                f"{name}: {ctx_size} tokens of context need {gib(need)} of KV cache, it gets {gib(cache)}.",
                f"Lower ctx_size to {cache // per_token}, or give it --kv-cache-memory-bytes in args.",
            )
    text = _text_part(told)
    longest = text.get("max_position_embeddings")
    if isinstance(longest, int) and ctx_size > longest and not text.get("rope_scaling"):
        raise Refused(
            f"{name} is made for {longest} tokens, ctx_size is {ctx_size}: vLLM refuses to start.",
            f"Set ctx_size of this model to {longest} or less.",
        )


def _object(config: str | None) -> dict[str, Any]:
    try:
        told = json.loads(config or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def weight_bytes(files: Sequence[tuple[str, int]], endings: Sequence[str]) -> int:
    """Bytes of the files (path, size) that are loaded."""
    return sum(size for path, size in files if path.endswith(tuple(endings)))
