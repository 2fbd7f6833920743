# SPDX-License-Identifier: Apache-2.0
"""State that an older lemond left, a lemond that somebody built, and lemond without internet."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lemonade_deploy.domain import hub_cache, lemond_binary, lemond_models, lemond_offline, lemond_state
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.refusal import Refused

OLD, NEW = lemond_state.OLD, "/var/lib/lemonade"
LEMOND = "/usr/bin/lemond"


def host(tmp_path: Path, says: str = "", rc: int = 0) -> Host:
    """A host whose programs all say the same. The home of the service is there."""

    def runner(
        argv: Sequence[str], env: Mapping[str, str], _stdin: str | None, _timeout: float | None
    ) -> Completed:
        shown = says.replace("$STATE", env.get("STATE_DIRECTORY", "")).replace("$HOME", env.get("HOME", ""))
        return Completed(tuple(argv), rc, shown, "")

    made = Host(str(tmp_path), runner)
    os.makedirs(made.path(NEW), exist_ok=True)
    made.write(LEMOND, "x", 0o755)
    return made


NEWER = "config_dir DIR [$STATE]"
OLDER = "cache_dir DIR [$HOME/.cache/lemonade]"


def fill(box: Host) -> None:
    box.write(f"{OLD}/config.json", '{"ctx_size": 3333}')
    box.write(f"{OLD}/user_models.json", "{}")
    box.write(f"{OLD}/bin/llamacpp/cpu/version.txt", "b1\n")
    box.write(f"{OLD}/bin/llamacpp/vulkan/version.txt", "b1\n")


def test_everything_moves_to_where_the_newer_lemond_looks(tmp_path: Path) -> None:
    box = host(tmp_path, NEWER)
    fill(box)
    box.write("/var/cache/lemonade/bin/llamacpp/vulkan/version.txt", "b2\n")
    (change,) = lemond_state.plan(box, LEMOND)
    assert (change.object, change.action) == ("state of an older lemond", "move")
    change.operations[0].apply(box)
    assert box.read(f"{NEW}/config.json") == '{"ctx_size": 3333}'
    assert box.read(f"{NEW}/user_models.json") == "{}"
    assert box.read("/var/cache/lemonade/bin/llamacpp/cpu/version.txt") == "b1\n"
    # A newer engine that is there already stays, and so does the old one: nothing is lost.
    assert box.read("/var/cache/lemonade/bin/llamacpp/vulkan/version.txt") == "b2\n"
    assert box.read(f"{OLD}/bin/llamacpp/vulkan/version.txt") == "b1\n"
    assert lemond_state.plan(box, LEMOND) == []


def test_a_plan_before_the_move_knows_the_models_that_move(tmp_path: Path) -> None:
    """Else check mode would predict registrations that the run does not make."""
    box = host(tmp_path, NEWER)
    box.write(f"{OLD}/user_models.json", '{"Smol": {"checkpoint": "Org/Smol", "recipe": "vllm"}}')
    wanted = lemond_models.Wanted("user.Smol", "Org/Smol")
    before = lemond_models.known_on_disk(box, wanted)
    assert before is not None and before.checkpoint == "Org/Smol"
    for operation in lemond_state.plan(box, LEMOND)[0].operations:
        operation.apply(box)
    assert lemond_models.known_on_disk(box, wanted) == before


def test_a_lemond_that_still_uses_the_old_place_keeps_it(tmp_path: Path) -> None:
    box = host(tmp_path, OLDER)
    fill(box)
    assert lemond_state.plan(box, LEMOND) == []


def test_nothing_there_nothing_to_do(tmp_path: Path) -> None:
    assert lemond_state.plan(host(tmp_path, NEWER), LEMOND) == []


def test_two_different_settings_are_not_ours_to_choose_from(tmp_path: Path) -> None:
    box = host(tmp_path, NEWER)
    fill(box)
    box.write(f"{NEW}/config.json", '{"ctx_size": 1}')
    with pytest.raises(Refused, match=r"config\.json and /var/lib/lemonade/config\.json differ"):
        lemond_state.plan(box, LEMOND)
    box.write(f"{NEW}/config.json", '{"ctx_size": 3333}')
    assert len(lemond_state.plan(box, LEMOND)) == 1


# --- lemonade_server_binary ----------------------------------------------------------


def test_a_built_lemond_is_tried(tmp_path: Path) -> None:
    box = host(tmp_path, "lemond version 11.9.0\n")
    box.write("/opt/lemonade/lemond", "x", 0o755)
    assert lemond_binary.check(box, "/opt/lemonade/lemond") == "lemond version 11.9.0"


@pytest.mark.parametrize(
    ("binary", "mode", "says"),
    [
        ("build/lemond", 0o755, "no absolute path"),
        ("/opt/../home/u/lemond", 0o755, "no absolute path"),
        ("/home/u/lemond", 0o755, "sees nothing"),
        ("/root/lemond", 0o755, "sees nothing"),
        ("/tmp/lemond", 0o755, "sees nothing"),
        ("/opt/none/lemond", None, "There is no file"),
        ("/opt/lemonade/lemond", 0o700, "not executable"),
    ],
)
def test_a_lemond_that_the_unit_could_not_run(
    tmp_path: Path, binary: str, mode: int | None, says: str
) -> None:
    box = host(tmp_path, "lemond version 1\n")
    if mode is not None and binary.startswith("/"):
        box.write(binary, "x", mode)
    with pytest.raises(Refused, match=says):
        lemond_binary.check(box, binary)


def test_a_link_into_a_home_is_seen_through(tmp_path: Path) -> None:
    box = host(tmp_path, "lemond version 1\n")
    box.write("/home/u/lemond", "x", 0o755)
    os.makedirs(box.path("/opt"), exist_ok=True)
    os.symlink(box.path("/home/u/lemond"), box.path("/opt/lemond"))
    with pytest.raises(Refused, match="/home/u/lemond stands where"):
        lemond_binary.check(box, "/opt/lemond")


@pytest.mark.parametrize(("says", "rc"), [("error while loading libfoo.so", 127), ("bash 5", 0), ("", 0)])
def test_a_program_that_is_no_lemond(tmp_path: Path, says: str, rc: int) -> None:
    box = host(tmp_path, says, rc)
    box.write("/opt/lemond", "x", 0o755)
    with pytest.raises(Refused, match="--version, run as nobody"):
        lemond_binary.check(box, "/opt/lemond")


# --- lemond offline ------------------------------------------------------------------

SMOL = {"name": "user.Smol", "checkpoint": "Org/Smol"}


def cached(box: Host, config: object) -> None:
    base = hub_cache.place("Org/Smol")
    box.write(f"{base}/refs/main", "abc")
    box.write(f"{base}/snapshots/abc/model.safetensors", "")
    box.write(f"{base}/snapshots/abc/config.json", json.dumps(config))


def test_lemond_offline_loads_only_quantised_models(tmp_path: Path) -> None:
    box = host(tmp_path)
    with pytest.raises(Refused, match="is not on the host"):
        lemond_offline.check(box, [SMOL])
    for config in ({"model_type": "llama"}, [], {"quantization_config": "awq"}):
        cached(box, config)
        with pytest.raises(Refused, match=r"asks huggingface\.co on every load") as refusal:
            lemond_offline.check(box, [SMOL])
    assert "lemonade_server_daemon to vllm" in refusal.value.remedy
    cached(box, {"quantization_config": {"quant_method": "awq"}})
    lemond_offline.check(box, [SMOL, {"name": "Llama-3.2-1B-GGUF", "recipe": "llamacpp"}])
