# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  lines of logs are as long as they are
"""The line that tells why a load failed. Journals as seen with lemond 2026.39 and vLLM 0.32 (trimmed)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from lemonade_deploy.domain import lemond_log, load_failures
from lemonade_deploy.domain.host import Completed, Host

START = "2026-11-30 11:28:41.900 [Info] (vLLM) Starting vllm-server on port 8001..."
END = [
    "2026-11-30 11:29:36.616 [Error] (WrappedServer) vllm-server process has terminated with exit code: 1",
    "2026-11-30 11:29:36.616 [Error] (WrappedServer)   - Missing required drivers or dependencies",
    "2026-11-30 11:29:36.616 [Error] (Router) Retry also failed: vllm-server failed to start within timeout",
]


def engine(*lines: str) -> list[str]:
    """A failed try: the engine's lines as lemond passes them on."""
    return [START, *(f"2026-11-30 11:29:24.310 [Error] (Process) {line}" for line in lines), *END]


KV_CACHE = engine(
    "(APIServer pid=776) WARNING 11-30 11:28:58 [system_utils.py:255] Found ulimit of 1024 … OSError: [Errno 24]",
    "(EngineCore pid=797) ERROR 11-30 11:29:24 [core.py:1510] EngineCore failed to start.",
    "(EngineCore pid=797) ERROR 11-30 11:29:24 [core.py:1510] Traceback (most recent call last):",
    "(EngineCore pid=797) ERROR 11-30 11:29:24 [core.py:1510]     raise ValueError(",
    "(EngineCore pid=797) ERROR 11-30 11:29:24 [core.py:1510] ValueError: To serve at least one request with the "
    "model's max seq len (4096), (0.09 GiB KV cache is needed, which is larger than the available KV cache memory",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
)
NOT_FOUND = engine(
    "(APIServer pid=448) ERROR 11-30 11:25:38 [repo_utils.py:126] Error retrieving file list: Client error '404",
    "httpx2.HTTPStatusError: Client error '404 Not Found' for url 'https://huggingface.co/api/models/x/y'",
    "huggingface_hub.errors.HfHubHTTPError: Client error '404 Not Found' for url 'https://huggingface.co/…'",
)


@pytest.mark.parametrize(
    ("journal", "name"),
    [
        (KV_CACHE, "kv-cache-too-small"),
        (NOT_FOUND, "model-not-found"),
        (
            engine(
                "/opt/x/bin/python3: error while loading shared libraries: libnuma.so.1: cannot open shared object "
                "file: No such file or directory"
            ),
            "missing-library",
        ),
        (engine("ModuleNotFoundError: No module named 'ijson'"), "missing-python-module"),
        (
            engine(
                "(EngineCore pid=2262) WARNING 11-30 13:24:22 [cpu.py:644] Failed to import from vllm._C: "
                "ImportError('libnuma.so.1: cannot open shared object file: No such file or directory')",
                "(EngineCore pid=2262) WARNING 11-30 13:24:22 [x.py:1] Failed to import from amdsmi: no space left",
                "(EngineCore pid=2262) ERROR 11-30 13:24:22 [core.py:1] AttributeError: '_OpNamespace' '_C' object has "
                "no attribute 'init_cpu_memory_env'",
            ),
            "missing-library",
        ),
        (
            engine("ImportError: /x/_C.abi3.so: undefined symbol: _ZN3c103hip19getCurrentHIPStreamEa"),
            "hip-symbol",
        ),
        (engine("torch.AcceleratorError: HIP error: hipErrorInvalidImage"), "invalid-image"),
        (engine("RuntimeError: No HIP GPUs are available"), "no-gpu-access"),
        (engine("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB."), "out-of-memory"),
        (engine("RuntimeError: HIP error: invalid device ordinal"), "invalid-device"),
        (engine("RuntimeError: AMDSMI_STATUS_FILE_ERROR"), "no-gpu-access"),
        (engine("ValueError: No available memory for the cache blocks. Try increasing"), "out-of-memory"),
        (
            engine(
                "KeyError: \"Tool parser 'qwen9' not found.\"",
                "TypeError: Error: --enable-auto-tool-choice requires tool_parser:'qwen9' which has not been "
                "registered",
            ),
            "tool-parser",
        ),
        (
            engine(
                "  Value error, User-specified max_model_len (99999) is greater than the derived max_model_len "
                "(max_position_embeddings=8192 or model_max_length=None in model's config.json)."
            ),
            "context-too-long",
        ),
        (
            engine("huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo"),
            "gated",
        ),
        (
            engine("PermissionError: [Errno 13] Permission denied: '/var/cache/huggingface/hub'"),
            "not-permitted",
        ),
        (engine("Exception: GPU archs ['gfx1151'] not supported with VLLM_ROCM_USE_AITER: 1"), "aiter"),
        (engine("Memory access fault by GPU node-1 (Agent handle: 0x5) on address 0x7f."), "page-fault"),
        (engine("huggingface_hub.errors.GatedRepoError: 401 Client Error."), "gated"),
        (
            engine(
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
                "  Value error, The checkpoint you are trying to load has model type `moon` but Transformers does not "
                "recognize this architecture.",
            ),
            "unknown-architecture",
        ),
        (engine("KeyError: 'invalid tool call parser: qwen9 (chose from { hermes })'"), "tool-parser"),
        (engine("OSError: [Errno 28] No space left on device"), "disk-full"),
        (engine("OSError: [Errno 98] Address already in use"), "port-in-use"),
        (engine("vllm-server: error: unrecognized arguments: --nonsense"), "arguments"),
        (engine("safetensors_rust.SafetensorError: Error while deserializing header"), "broken-weights"),
        (
            engine("(EngineCore pid=1) ERROR 11-30 11:29:24 [core.py:1] clang: error: crti.o: no such file"),
            "no-compiler",
        ),
        (
            [
                START,
                "2026-11-30 11:29:36.616 [Error] (Router) Backend load failed: CURL error: Could not resolve host"
                "name",
            ],
            "hub-unreachable",
        ),
        (
            [START, "2026-11-30 11:29:36.616 [Error] (ProcessManager) Failed to execute: /opt/bundle"],
            "launcher",
        ),
    ],
)
def test_known_reasons(journal: list[str], name: str) -> None:
    diagnosis = lemond_log.diagnose(journal)
    assert diagnosis is not None
    assert diagnosis.signature is not None, diagnosis.line
    assert diagnosis.signature.id == name
    assert diagnosis.signature.remedy


def test_the_root_line_and_not_its_followers() -> None:
    diagnosis = lemond_log.diagnose(KV_CACHE)
    assert diagnosis is not None
    assert diagnosis.line.startswith("ValueError: To serve at least one request")


def test_an_unknown_reason_is_shown_word_for_word() -> None:
    diagnosis = lemond_log.diagnose(engine("pkg.StrangeError: the moon is wrong"))
    assert diagnosis == lemond_log.Diagnosis("pkg.StrangeError: the moon is wrong", None)


def test_a_secret_in_the_line_is_hidden() -> None:
    diagnosis = lemond_log.diagnose(engine("pkg.Error: refused for token hf_abcdefghijklmnop"))
    assert diagnosis is not None
    assert "hf_abc" not in diagnosis.line
    assert diagnosis.line.startswith("pkg.Error: refused")


def test_an_engine_that_was_only_slow() -> None:
    words = (
        "2026-11-30 11:29:24.310 [Info] (Process) (EngineCore pid=9) INFO 11-30 11:29:24 [x.py:1] Compiling"
    )
    diagnosis = lemond_log.diagnose([START, words, END[2]])
    assert diagnosis is not None and diagnosis.signature is load_failures.STILL_STARTING
    assert diagnosis.line.endswith("Compiling")
    # One that ended by itself was not slow, and one that said why was not slow either.
    assert _id(lemond_log.diagnose([START, words, *END])) != "still-starting"
    assert (
        _id(lemond_log.diagnose(engine("ModuleNotFoundError: No module named 'x'")))
        == "missing-python-module"
    )


def _id(diagnosis: lemond_log.Diagnosis | None) -> str:
    return diagnosis.signature.id if diagnosis and diagnosis.signature else ""


def test_only_the_last_try_counts() -> None:
    journal = [*engine("ModuleNotFoundError: No module named 'old'"), *engine("pkg.NewError: new")]
    diagnosis = lemond_log.diagnose(journal)
    assert diagnosis is not None
    assert diagnosis.line == "pkg.NewError: new"


def test_a_last_try_that_ran_out_of_time_leaves_the_word_to_the_one_before() -> None:
    journal = [*engine("ModuleNotFoundError: No module named 'ijson'"), START]
    diagnosis = lemond_log.diagnose(journal)
    assert diagnosis is not None and diagnosis.signature is not None
    assert diagnosis.signature.id == "missing-python-module"


def test_without_a_word_of_the_engine_lemond_is_quoted() -> None:
    diagnosis = lemond_log.diagnose([START, *END])
    assert diagnosis is not None
    assert "terminated with exit code" in diagnosis.line
    assert lemond_log.diagnose([]) is None


def test_the_journal_may_hold_odd_bytes() -> None:
    lines = [json.dumps({"MESSAGE": list("grün\xff".encode("latin-1"))}), json.dumps({"MESSAGE": None})]
    assert lemond_log.parse("\n".join(lines)) == ["gr\ufffdn\ufffd"]


def test_a_long_line_is_read_whole() -> None:
    long = f"RuntimeError: {'x' * 5000} No space left on device"

    def journalctl(argv: Sequence[str], *_more: object) -> Completed:
        text = json.dumps({"MESSAGE": engine(long)[1] if "--all" in argv else None})  # as the real one does
        return Completed(tuple(argv), 0, text, "")

    diagnosis = lemond_log.diagnose(lemond_log.read(Host("/nowhere", journalctl)))
    assert diagnosis and diagnosis.signature and diagnosis.signature.id == "disk-full"


def test_signatures_have_one_id_each() -> None:
    names = [signature.id for signature in load_failures.SIGNATURES]
    assert len(names) == len(set(names))


def test_the_check_before_the_start_is_quoted_where_lemond_said_nothing(tmp_path: Path) -> None:
    lines = ["gpu-check: older", "gpu-check: /dev/kfd is not there. See doctor.", "lemond.service: Failed"]

    def journalctl(argv: Sequence[str], *_more: object) -> Completed:
        return Completed(tuple(argv), 0, "\n".join(json.dumps({"MESSAGE": line}) for line in lines), "")

    host = Host(str(tmp_path), journalctl)
    assert lemond_log.service_errors(host) == ["/dev/kfd is not there. See doctor."]
    lines.append("2026-11-30 11:29:36.616 [Error] (Server) Failed to bind")
    assert lemond_log.service_errors(host) == ["Failed to bind"]


def test_a_warning_of_the_engine_is_no_cause() -> None:
    """vLLM warns on stderr, which lemond notes as Error: taken for the reason while a load still ran."""
    stamp = "2026-11-30 15:59:37.277"
    warning = (
        "(APIServer pid=1) WARNING 11-30 15:59:37 [system_utils.py:255] Found ulimit of 20000 `OSError: x`"
    )
    running = [
        f"{stamp} [Info] (vLLM) Starting vllm-server on port 8001...",
        f"{stamp} [Error] (Process) {warning}",
    ]
    assert lemond_log.diagnose(running) is None
    given_up = [*running, f"{stamp} [Error] (WrappedServer) vllm-server failed to start within timeout"]
    diagnosis = lemond_log.diagnose(given_up)
    assert diagnosis is not None and diagnosis.signature is load_failures.STILL_STARTING
