# SPDX-License-Identifier: Apache-2.0
"""The suite's own judgement, against a host made of texts: what must turn it red does."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import lemonade_deploy
from lemonade_deploy.verify import kernel_log

SUITE = Path(lemonade_deploy.__file__).parent / "verify" / "suite"


def suite(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"suite_{name}", SUITE / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def host(stdout: str = "", **attributes: Any) -> Any:
    """A host that gives the same text to every command."""
    return SimpleNamespace(run=lambda _command: SimpleNamespace(stdout=stdout, rc=0), **attributes)


def node(cwsr: int, control: int = 16384, simd: int = 80) -> Any:
    lines = {"gfx_target_version": 110501, "simd_count": simd, "simd_per_cu": 2, "num_xcc": 1}
    lines |= {"cwsr_size": cwsr, "ctl_stack_size": control}
    path = "/sys/class/kfd/kfd/topology/nodes/1/properties"
    return host("\n".join(f"{path}:{name} {value}" for name, value in lines.items() if value))


@pytest.mark.parametrize(
    ("cu", "sizes"), [(40, (19185664, 16384)), (32, (15351808, 16384)), (16, (7675904, 8192))]
)
def test_expected_sizes(cu: int, sizes: tuple[int, int]) -> None:
    assert suite("test_gpu").expected(cu) == sizes


def test_the_right_sizes_pass_and_larger_ones_do() -> None:
    check = suite("test_gpu").test_save_areas_of_gfx1151
    check(node(19185664))
    check(node(19185664 + 4096))


@pytest.mark.parametrize(("cwsr", "control"), [(13942784, 16384), (0, 0), (19185664, 8192)])
def test_old_missing_and_wrong_sizes_fail(cwsr: int, control: int) -> None:
    with pytest.raises(AssertionError, match="node 1 with 40 CUs"):
        suite("test_gpu").test_save_areas_of_gfx1151(node(cwsr, control))


def test_no_gpu_fails() -> None:
    with pytest.raises(AssertionError, match="driver is not loaded"):
        suite("test_gpu").test_the_driver_shows_a_gpu(host())


UNIT = {"ActiveEnterTimestampMonotonic": "5000"}


def kernel(message: str, at: int) -> Any:
    return host(json.dumps({"MESSAGE": message, "__MONOTONIC_TIMESTAMP": str(at)}))


FAULT = "amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32770)"


def judge(found: Any) -> dict[str, str]:
    """The suite's test of the kernel's log; what it noted."""
    noted: dict[str, str] = {}
    suite("test_engine").test_no_gpu_fault_since_the_service_started(found, UNIT, noted.__setitem__)
    return noted


# As reported: ROCm#5890, #6139, #5724, ollama#13589.
FAULTS = [
    FAULT,
    "amdgpu 0000:c6:00.0: amdgpu: GCVM_L2_PROTECTION_FAULT_STATUS:0x00800932",
    "amdgpu 0000:c6:00.0: amdgpu: \t Faulty UTCL2 client ID: CPF (0x4)",
    "amdgpu 0000:c6:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE",
    "amdgpu 0000:c6:00.0: amdgpu: GPU reset begin!",
    "amdgpu: Freeing queue vital buffer 0x7f1234000000, queue evicted",
    "amdgpu 0000:c6:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=4, emitted seq=6",
    "[drm] VRAM is lost due to GPU reset!",
]
QUIET = [
    "usb 1-1: new device",
    "amdgpu 0000:c6:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
    "amdgpu 0000:c6:00.0: amdgpu: SMU is initialized successfully!",
    "igc 0000:01:00.0 eth0: reset adapter",
]


@pytest.mark.parametrize("message", FAULTS)
def test_a_gpu_fault_since_the_start_fails(message: str) -> None:
    with pytest.raises(AssertionError):
        judge(kernel(message, 6000))


@pytest.mark.parametrize(("message", "at"), [(FAULT, 4000), *((line, 6000) for line in QUIET)])
def test_older_faults_and_other_lines_pass(message: str, at: int) -> None:
    assert judge(kernel(message, at)) == {"kernel_log": ""}


def test_a_kernel_log_that_cannot_be_read_is_no_proof() -> None:
    noted: dict[str, str] = {}
    check = suite("test_engine").test_no_gpu_fault_since_the_service_started
    with pytest.raises(pytest.skip.Exception, match="no line of the kernel's log"):
        check(host(""), UNIT, noted.__setitem__)
    assert "not tested" in noted["warning"]


def test_dmesg_serves_where_there_is_no_journal() -> None:
    def run(command: str) -> str:
        rows = [{"pri": 3, "time": 12.5, "msg": FAULT}, {"pri": 6, "time": 1.0, "msg": FAULT}]
        return json.dumps({"dmesg": rows}) if command.startswith("dmesg") else ""

    log = kernel_log.read(run)
    assert log.readable and kernel_log.faults(log, 2_000_000) == [FAULT]


PLACE = "/opt/lemonade-deploy/vllm-rocm"
LAID = "vllm1.2-rocm7.1-gfx1151"


def bundles(folder: str, tag: str | None, stamps: str = "") -> tuple[Any, str]:
    """A host whose active bundle is *folder*, with a record of *tag*; what its stamps of rollbacks say."""

    def file(path: str) -> Any:
        record = path.endswith(".json")
        text = json.dumps({"tag": tag}) if record and tag else ""
        there = bool(text) or not record
        return SimpleNamespace(exists=there, content_string=text, is_symlink=True, mode=0o755)

    return host(stamps, file=file), f"{PLACE}/{folder}"


def judge_bundle(found: tuple[Any, str], wanted: str = "") -> dict[str, str]:
    noted: dict[str, str] = {}
    check = suite("test_engine").test_the_active_bundle_is_the_wanted_release
    check(found[0], found[1], {}, "vllm", wanted, noted.__setitem__)
    return noted


@pytest.mark.parametrize("wanted", ["", LAID, "vllm1.2-rocm7.1"])
@pytest.mark.parametrize("folder", [LAID, LAID + ".2"])
def test_the_wanted_bundle_passes(folder: str, wanted: str) -> None:
    assert judge_bundle(bundles(folder, LAID), wanted) == {}


@pytest.mark.parametrize(
    ("folder", "tag", "wanted", "said"),
    [
        ("vllm9.9.9-rocm9.9.9-gfx1151", None, "", "was not laid down by lemonade-deploy"),
        ("vllm9.9.9-rocm9.9.9-gfx1151", LAID, "", "holds the record of"),
        (LAID + "-x", LAID, "", "holds the record of"),
        (LAID, LAID, "vllm1.3-rocm7.1", "the inventory wants vllm1.3"),
    ],
)
def test_a_bundle_that_is_not_the_kits_or_not_the_wanted_one_fails(
    folder: str, tag: str | None, wanted: str, said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        judge_bundle(bundles(folder, tag), wanted)


def test_after_a_rollback_another_release_is_a_warning() -> None:
    noted = judge_bundle(bundles(LAID, LAID, stamps=LAID + "\n"), "vllm1.3-rocm7.1")
    assert "somebody rolled back" in noted["warning"]


class Asked:
    """An API that gives texts in turn; *busy* says what is in flight when it is asked."""

    def __init__(self, texts: list[str], busy: list[bool]) -> None:
        self._texts, self._busy = iter(texts), iter(busy)

    def chat(self, _model: str) -> Any:
        choice = {"message": {"content": next(self._texts)}}
        return SimpleNamespace(status=200, json={"choices": [choice]}, text="")

    def busy(self) -> bool:
        return next(self._busy, False)


def greedy(api: Asked) -> dict[str, str]:
    noted: dict[str, str] = {}
    check = suite("test_completion").test_greedy_answers_are_the_same
    check(api, "m", SimpleNamespace(status=200), noted.__setitem__)
    return noted


def test_greedy_answers_must_agree_unless_others_ask_too() -> None:
    assert greedy(Asked(["4", "4"], [])) == {}
    with pytest.raises(AssertionError):
        greedy(Asked(["4", "5"], [False, False, False]))
    for busy in ([True], [False, True], [False, False, True]):
        assert "not repeatable" in greedy(Asked(["4", "5"], busy))["warning"]


def sockets(*found: str) -> Any:
    return host(socket=SimpleNamespace(get_listening_sockets=lambda: list(found)))


def test_an_open_port_must_demand_a_key() -> None:
    check = suite("test_endpoint").test_strangers_are_kept_out
    answering = {
        status: SimpleNamespace(get=lambda *_a, s=status, **_k: SimpleNamespace(status=s))
        for status in (200, 401)
    }
    wide = sockets("tcp://0.0.0.0:13305", "unix:///run/x")
    with pytest.raises(AssertionError, match="without a key"):
        check(wide, answering[200], {"port": 13305})
    check(wide, answering[401], {"port": 13305})
    check(sockets("tcp://127.0.0.1:13305", "tcp://::1:13305"), answering[200], {"port": 13305})


def test_a_closed_port_fails() -> None:
    with pytest.raises(AssertionError):
        suite("test_endpoint").test_it_listens_at_the_configured_port(sockets("tcp://:22"), {"port": 13305})


def test_an_error_inside_a_stream_fails() -> None:
    check = suite("test_completion").test_streamed_completion
    good = 'data: {"choices": [{"delta": {"content": "4"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n'
    bad = 'data: {"error": {"message": "boom"}, "choices": []}\n\n' + good
    first = SimpleNamespace(status=200)

    def api(text: str) -> Any:
        return SimpleNamespace(chat=lambda _model, stream: SimpleNamespace(status=200, text=text))

    check(api(good), "m", first)
    for text in (bad, "", good.replace("[DONE]", "{}"), good.replace('"content": "4"', '"content": ""')):
        with pytest.raises((AssertionError, KeyError)):
            check(api(text), "m", first)
