# SPDX-License-Identifier: Apache-2.0
"""The burn test on a host where vLLM itself is the daemon: who answers what is asked of lemond."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.domain import bench, bench_session, completion, paths, vllm_service
from lemonade_deploy.domain.bench_served import NO_LEMOND, Served
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.refusal import Refused

COMMAND = "--model org/x --served-model-name user.X --host 127.0.0.1 --port 1"
UNIT = f"[Service]\nExecStart=/opt/lemonade-deploy/bin/vllm-server {COMMAND}\n"


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def served(tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> Served:
    def run(argv: Sequence[str], *_more: Any) -> Completed:
        asked.append(" ".join(argv))
        return Completed(tuple(argv), 0, "", "")

    host = Host(str(tmp_path), run)
    host.write(paths.VLLM_UNIT, UNIT)
    monkeypatch.setattr(vllm_service, "healthy", lambda _endpoint: True)
    monkeypatch.setattr(vllm_service, "await_ready", lambda *_arguments: None)
    return Served(host)


def test_the_one_model_by_both_names(served: Served) -> None:
    assert completion.full_name(served, "X") == completion.full_name(served, "user.X") == "user.X"
    told = served.loaded("user.X")
    assert told is not None and told["checkpoint"] == "org/x"
    assert told["launch_command"][:3] == ["/opt/lemonade-deploy/bin/vllm-server", "--model", "org/x"]
    with pytest.raises(Refused, match="no model Y"):
        completion.full_name(served, "Y")
    assert bench_session.chosen(served, [], False) == bench_session.chosen(served, [], True) == ["user.X"]
    assert served.get("/v1/health").body["version"] == NO_LEMOND


def test_a_load_is_a_start(served: Served, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.post("/v1/unload", {}).ok and served.post("/v1/load", {"model_name": "user.X"}).ok
    assert [line for line in asked if " start " in line or " stop " in line] == [
        "systemctl stop lemonade-vllm.service",
        "systemctl start lemonade-vllm.service",
    ]

    def fails(*_arguments: Any) -> None:
        raise Refused("vLLM does not load its model. No room", "Less.")

    monkeypatch.setattr(vllm_service, "await_ready", fails)
    answer = served.post("/v1/load", {})
    assert not answer.ok and "No room" in answer.error


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("INFO 11-30 11:29:24 [x.py:1] on my way", "unknown"),
    ],
)
def test_a_failed_start_is_diagnosed_by_vllms_own_journal(
    served: Served, monkeypatch: pytest.MonkeyPatch, line: str, cause: str
) -> None:
    def journalctl(argv: Sequence[str], *_more: Any) -> Completed:
        told = json.dumps({"MESSAGE": line}) if vllm_service.UNIT in argv else ""
        return Completed(tuple(argv), 0, told, "")

    def fails(*_arguments: Any) -> None:
        raise Refused("vLLM does not load its model.", "Less.")

    monkeypatch.setattr(vllm_service, "await_ready", fails)
    served._host = Host("/nowhere", journalctl)
    told = bench.Bench(served._host, served, bench.Method()).model("user.X")
    assert (told["status"], told["failure"]["cause"]) == ("failed", cause)
    assert cause != "unknown" or f"journalctl -u {vllm_service.UNIT}" in told["failure"]["remedy"]
