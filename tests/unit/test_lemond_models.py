# SPDX-License-Identifier: Apache-2.0
"""Models: what is registered, pulled, configured; who is asked; what a wrong name is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lemonade_deploy.domain import lemond_models as models
from lemonade_deploy.domain import model_plan
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.hub import Repository
from lemonade_deploy.domain.hub_folder import Folder
from lemonade_deploy.domain.lemond_api import Lemond
from lemonade_deploy.domain.lemond_config import STATE_DIR
from lemonade_deploy.domain.model_files import Store
from lemonade_deploy.domain.module import Refused

CLIENT = Lemond("http://127.0.0.1:1")
OWN = models.wanted_from({"name": "user.Small", "checkpoint": "org/small"})
BUILT_IN = models.wanted_from({"name": "Qwen3.5-0.8B-FP16-vLLM"})


def actions(
    wanted: models.Wanted, known: models.Known | None, stored: dict[str, bool] | None = None
) -> list[str]:
    files = model_plan.Files(stored or {})
    changes = model_plan.plan([wanted], {wanted.name: known}, CLIENT, 60, files)
    assert {change.object for change in changes} <= {f"model {wanted.name}"}
    return [change.action for change in changes]


def test_an_own_model_is_registered_and_pulled() -> None:
    assert actions(OWN, None) == ["register", "pull"]


def test_files_that_are_there_are_not_pulled() -> None:
    assert actions(OWN, None, {"org/small": True}) == ["register"]


def test_a_download_of_ours_comes_before_the_registration() -> None:
    """lemond looks at the disk when a model is registered: what comes later it would not see."""
    repository = Repository("org/small", "c" * 40, False, ())
    download = model_plan.Download(repository, Store(Folder(Host(), "/srv/models")))
    files = model_plan.Files({}, {"org/small": download})
    changes = model_plan.plan([OWN], {OWN.name: None}, CLIENT, 60, files)
    assert [change.action for change in changes] == ["pull", "register"]


def test_nothing_to_do() -> None:
    assert actions(OWN, models.Known("org/small", "vllm", True)) == []
    assert actions(BUILT_IN, models.Known("Qwen/Qwen3.5-0.8B", "vllm", True)) == []


def test_another_checkpoint_is_another_registration() -> None:
    assert actions(OWN, models.Known("org/other", "vllm", True)) == ["register", "pull"]


def test_a_built_in_model_is_only_pulled() -> None:
    assert actions(BUILT_IN, models.Known("Qwen/Qwen3.5-0.8B", "vllm", False)) == ["pull"]


def test_options_are_saved_where_they_differ() -> None:
    wanted = models.wanted_from(
        {"name": "user.Small", "checkpoint": "org/small", "ctx_size": 512, "args": "--a"}
    )
    there = models.Known("org/small", "vllm", True, {"ctx_size": 512})
    assert actions(wanted, there) == ["configure"]
    full = models.Known("org/small", "vllm", True, {"ctx_size": 512, "vllm_args": "--a", "other": 1})
    assert actions(wanted, full) == []


def test_own_models_get_the_name_that_works() -> None:
    assert models.wanted_from({"name": "Small", "checkpoint": "org/small"}).name == "user.Small"
    assert models.wanted_from({"name": "Small"}).name == "Small"


def test_an_old_name_gets_a_suggestion() -> None:
    with pytest.raises(Refused, match=r"Did you mean Qwen3\.5-0\.8B-FP16-vLLM\?"):
        models.check_names([models.Wanted("Qwen3.5-0.8B-vLLM")], list(models.BUILT_IN))
    models.check_names([BUILT_IN, OWN], list(models.BUILT_IN))


def test_a_registration_of_an_earlier_run_is_known_without_its_checkpoint() -> None:
    """/v1/models lists it without the prefix."""
    models.check_names([models.Wanted("user.Small")], ["Small"])


def test_without_a_lemond_the_files_tell(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert models.known_on_disk(host, OWN) is None
    registered = {"Small": {"checkpoint": "org/small", "recipe": "vllm"}}
    host.write(f"{STATE_DIR}/user_models.json", json.dumps(registered))
    host.write(f"{STATE_DIR}/recipe_options.json", json.dumps({"user.Small": {"ctx_size": 512}}))
    known = models.known_on_disk(host, OWN)
    assert known == models.Known("org/small", "vllm", False, {"ctx_size": 512})


def test_a_download_is_there_with_its_weights(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    folder = "/var/cache/huggingface/hub/models--org--small/snapshots/abc"
    host.write(f"{folder}/config.json", "{}")
    assert not models.on_disk(host, "org/small")
    host.write(f"{folder}/model.safetensors", "x")
    assert models.on_disk(host, "org/small")
    assert not models.on_disk(host, "")


def test_damaged_files_of_lemond_are_no_registration(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write(f"{STATE_DIR}/user_models.json", "{broken")
    assert models.known_on_disk(host, OWN) is None
