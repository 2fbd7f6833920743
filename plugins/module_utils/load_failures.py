# SPDX-License-Identifier: Apache-2.0
"""Known reasons why an engine does not start: what its line looks like, what it means, what helps."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Signature:
    """``pattern`` is searched in a log line; ``cause`` and ``remedy`` are for the user."""

    id: str
    pattern: re.Pattern[str]
    cause: str
    remedy: str


def _signature(name: str, pattern: str, cause: str, remedy: str) -> Signature:
    return Signature(name, re.compile(pattern), cause, remedy)


_REINSTALL = (
    "Remove the bundle's folder and run the role vllm_rocm again, or choose another vllm_rocm_release."
)

SIGNATURES = (
    _signature(
        "kv-cache-too-small",
        r"larger than the available KV cache memory",
        "The KV cache is too small for the context length",
        "Lower ctx_size, or give vLLM more with --kv-cache-memory-bytes in lemonade_server_vllm_args.",
    ),
    _signature(
        "context-too-long",
        r"max_model_len \(\d+\) is greater than the derived max_model_len",
        "The context length is more than the model is made for",
        "Lower ctx_size of this model in models_wanted.",
    ),
    _signature(
        "aiter",
        r"not supported with VLLM_ROCM_USE_AITER",
        "AITER has no kernels for this GPU",
        "Set VLLM_ROCM_USE_AITER: 0 in lemonade_server_environment.",
    ),
    _signature(
        "not-permitted",
        r"PermissionError: .*Permission denied: '/var/cache/|Permission denied: /var/cache/",
        "The service may not write where models and caches belong (lemonade issue 3416)",
        "Run the role lemonade_server: it gives /var/cache/huggingface to the service's user.",
    ),
    _signature(
        "gated",
        r"40[13] Client Error|Client error '40[13]|GatedRepoError|[Aa]ccess to model .* is restricted"
        r"|Cannot access gated repo",
        "The model needs a Hugging Face token",
        "Accept its licence on huggingface.co and set lemonade_server_hf_token (in a vault).",
    ),
    _signature(
        "hub-unreachable",
        r"Could not resolve host|Couldn't connect to server|Cannot reach the Hub|LocalEntryNotFoundError"
        r"|Connection (refused|timed out)",
        "The host cannot reach huggingface.co, which lemond asks on every load of an unquantised model",
        "Let the host reach huggingface.co or a mirror that answers for it.",
    ),
    _signature(
        "model-not-found",
        r"404 (Client Error|Not Found).*huggingface|RepositoryNotFoundError|EntryNotFoundError",
        "The model hub has no such model or file",
        "Check the checkpoint's name in models_wanted.",
    ),
    _signature(
        "hip-symbol",
        r"undefined symbol",
        "The bundle's libraries do not fit each other (vllm-rocm#36)",
        "Choose another vllm_rocm_release.",
    ),
    _signature(
        "missing-library",
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "A shared library is missing",
        "Install the package that ships it, or, where it belongs to the bundle: " + _REINSTALL,
    ),
    _signature(
        "missing-python-module",
        r"ModuleNotFoundError",
        "A Python module of the bundle is missing",
        _REINSTALL,
    ),
    _signature(
        "invalid-image",
        r"hipErrorInvalidImage|hipErrorNoBinaryForGpu",
        "The bundle has no code for this GPU (.kpack folders are lost, or it is for another family)",
        _REINSTALL,
    ),
    _signature(
        "no-gpu-access",
        r"hipErrorNoDevice|No HIP GPUs are available|AMDSMI_STATUS",
        "vLLM cannot open the GPU",
        "Check that /dev/kfd is there and that lemond runs with the groups render and video.",
    ),
    _signature(
        "invalid-device",
        r"invalid device ordinal|hipErrorInvalidDevice",
        "vLLM asks for a GPU that its environment hides (vllm-rocm#3)",
        "Take HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES out of lemonade_server_environment and "
        "/etc/default/lemond, or set only one of them.",
    ),
    _signature(
        "page-fault",
        r"Memory access fault by GPU|page fault",
        "The GPU faulted",
        "Compare the CWSR numbers with `lemonade-deploy doctor`; look at `journalctl -k -g amdgpu`.",
    ),
    _signature(
        "out-of-memory",
        r"OutOfMemoryError|out of memory|Cannot allocate memory|hipErrorOutOfMemory"
        r"|No available memory for the cache blocks|is less than desired GPU memory utilization",
        "There is not enough memory for the model",
        "Choose a smaller model or ctx_size, raise gpu_memory_gtt_gib, or free memory.",
    ),
    _signature(
        "disk-full",
        r"No space left on device|Disk quota exceeded",
        "The disk is full",
        "Free space below /var/cache (models, TMPDIR, compiled kernels).",
    ),
    _signature(
        "port-in-use",
        r"[Aa]ddress already in use",
        "The engine's port is taken",
        "`ss -ltnp` names the holder.",
    ),
    _signature(
        "unknown-architecture",
        r"model type `[^`]+` but Transformers does not recognize|Model architectures .* are not supported",
        "This bundle's vLLM does not know the model's architecture",
        "Choose another model or a newer vllm_rocm_release.",
    ),
    _signature(
        "tool-parser",
        r"tool[ -]call[ -]parser.*(invalid|not found|unknown)|invalid tool call parser"
        r"|[Tt]ool parser '[^']*' not found|tool_parser:'[^']*' which has not been registered",
        "This bundle's vLLM does not know the tool call parser that lemond asks for",
        "Choose another vllm_rocm_release.",
    ),
    _signature(
        "broken-weights",
        r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer|incomplete metadata",
        "The model's weights are damaged or incomplete",
        "Delete the model (`lemonade delete NAME`) and run the role models again.",
    ),
    _signature(
        "no-compiler",
        r"stdlib\.h|crti\.o|clang-\d+: not found|Failed to find C compiler",
        "Triton cannot compile kernels: C headers or the compiler are missing",
        "Install libc6-dev (vllm_rocm_packages), or choose another vllm_rocm_release (vllm-rocm#40).",
    ),
    _signature(
        "launcher",
        r"Failed to execute|(vllm-server|python3): (No such file|not found|Permission denied)",
        "lemond cannot start the launcher",
        "Run the role vllm_rocm again; vllm.rocm_bin must name the launcher file.",
    ),
    _signature(
        "arguments",
        r"unrecognized arguments|managed by Lemonade and cannot be overridden|error: argument",
        "vLLM or lemond refuses an argument",
        "Correct lemonade_server_vllm_args, or args in models_wanted.",
    ),
)


# Told by what is missing, not by a line: lemond gave up on an engine that was alive and said nothing wrong.
STILL_STARTING = _signature(
    "still-starting",
    r"failed to start within timeout",
    "The engine was still starting when lemond's time ran out: a first load compiles for many minutes",
    "Raise lemonade_server_global_timeout (s). What is compiled stays: the next load goes on from there.",
)


def match(line: str) -> Signature | None:
    """The first signature that fits *line*."""
    return next((signature for signature in SIGNATURES if signature.pattern.search(line)), None)
