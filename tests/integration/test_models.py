# SPDX-License-Identifier: Apache-2.0
"""Models on a host that serves (light engine, real lemond, the lab's hub): what is refused before a byte is
downloaded, downloads that break, the folder instead of the hub, options taken back, warm after a restart.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.lab import Lab
from lemonade_deploy.lab.engine import hub
from lemonade_deploy.lab.paths import state_dir
from lemonade_deploy.lab.services import faults

from .conftest import SERVING as HOST
from .kit import changed, host_of, kit

pytestmark = pytest.mark.lab

OWN = "user.SmolLM2-135M"
REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF"
BUILT_IN = "Qwen3.5-0.8B-FP16-vLLM"
HUB = "huggingface.co"
CACHE = "/var/cache/huggingface/hub"


def www() -> Path:
    """What the lab's server serves."""
    return state_dir() / "www"


def run(lab: Lab, *more: str, **models: Any) -> dict[str, Any]:
    """The role models with *models* as variables; the host's part of the document."""
    ran = kit(
        *("site.yml", "-i", str(lab.inventory_path), "-l", HOST, "-t", "models", "--json"),
        *("-e", json.dumps(models or {"models_load_timeout": 1800}), *more),
    )
    return {**host_of(ran, HOST), "said": ran.stderr}


def sh(lab: Lab, script: str) -> str:
    """A script as root on the host; it must end well."""
    done = lab.exec(HOST, ["sudo", "sh", "-ec", script])
    assert done.rc == 0, done.stderr
    return done.stdout


def asked(lab: Lab, path: str) -> list[dict[str, Any]]:
    """Answers of the hub that name *path*, in their order."""
    log = (state_dir() / "access.jsonl").read_text().splitlines()
    return [entry for line in log if path in (entry := json.loads(line))["path"] and entry["host"] == HUB]


def loaded(lab: Lab) -> list[str]:
    """Models that lemond has in memory, as it lists them (without the prefix)."""
    text = sh(lab, "curl -s http://127.0.0.1:13305/v1/health")
    return [entry["model_name"] for entry in json.loads(text)["all_models_loaded"]]


@pytest.fixture
def copy_of(serving: Lab) -> Iterator[str]:
    """Another repository on the hub, with the same files; what is planned for it is gone afterwards."""
    name = "lab/Copy-GGUF"
    folder = www() / HUB / name
    shutil.copytree(www() / HUB / REPOSITORY, folder)
    yield name
    faults.write(www(), [])
    shutil.rmtree(folder)
    sh(serving, f"rm -rf {CACHE}/models--lab--*")


def test_a_gated_model_is_refused_before_its_download(serving: Lab, copy_of: str) -> None:
    before = len(asked(serving, f"{copy_of}/resolve"))
    (www() / HUB / copy_of / hub.GATED).write_text("the-token-that-opens\n")
    wanted = [{"name": "user.Gated", "checkpoint": copy_of}]
    failure = run(serving, models_wanted=wanted)["failure"]
    assert "is gated" in failure["message"] and "none is set" in failure["message"]
    assert "lemonade_server_hf_token" in failure["remedy"]
    assert not [one for one in asked(serving, f"{copy_of}/resolve")[before:] if one["status"] == 200]
    # The token is read from the service's own environment file, and goes to the hub as a header.
    sh(serving, "umask 077; printf 'HF_TOKEN=\"the-token-that-opens\"\\n' > /etc/lemonade-deploy/lemond.env")
    host = run(serving, models_wanted=wanted)
    sh(serving, "rm /etc/lemonade-deploy/lemond.env")
    assert host["failure"] is None, host["failure"]
    assert {"pull", "register"} <= {
        action for _layer, name, action in changed(host) if name == "model user.Gated"
    }


def test_what_does_not_fit_is_refused_with_numbers(serving: Lab, copy_of: str) -> None:
    before = len(asked(serving, f"{copy_of}/resolve"))
    wide = {"name": "user.Wide", "checkpoint": copy_of, "args": "--kv-cache-memory-bytes 40G"}
    failure = run(serving, models_wanted=[wide])["failure"]
    assert "0.1 GiB of weights and 40.0 GiB of KV cache, the GPU has 15.5 GiB" in failure["message"]
    sh(serving, "mount -t tmpfs -o size=600M tmpfs /var/cache/huggingface")
    failure = run(serving, models_wanted=[{"name": "user.Copy", "checkpoint": copy_of}])["failure"]
    sh(serving, "umount /var/cache/huggingface")
    assert (
        "0.1 GiB to download, /var/cache/huggingface has 0.6 GiB free (1.0 GiB must stay)"
        in failure["message"]
    )
    failure = run(serving, models_wanted=[{"name": "user.None", "checkpoint": "lab/Nothing"}])["failure"]
    assert "has no model lab/Nothing" in failure["message"]
    assert sum(one["bytes"] for one in asked(serving, f"{copy_of}/resolve")[before:]) < 1 << 20


def test_a_download_that_breaks_goes_on_and_tells_how_far_it_is(serving: Lab, copy_of: str) -> None:
    before = len(asked(serving, f"{copy_of}/resolve"))
    slow = faults.Fault(HUB, "*.gguf", rate=5 << 20)  # longer than a slice of time
    faults.write(www(), [faults.Fault(HUB, "*.gguf", times=1, cut_after=10 << 20), slow])
    host = run(serving, models_wanted=[{"name": "user.Copy", "checkpoint": copy_of}, {"name": OWN}])
    assert host["failure"] is None, host["failure"]
    assert "0.10 GB" in host["said"] and "% (" in host["said"]
    parts = [one for one in asked(serving, f"{copy_of}/resolve")[before:] if one["path"].endswith(".gguf")]
    sent = sum(one["bytes"] for one in parts)
    size = max(path.stat().st_size for path in (www() / HUB / copy_of).iterdir())
    assert len(parts) >= 2 and all(one["range"] for one in parts[1:])
    assert sent < 1.1 * size  # nothing was fetched twice
    assert loaded(serving) == ["Copy"]
    sh(serving, f"stat -c %U {CACHE}/models--lab--Copy-GGUF/snapshots/*/*.gguf | grep -qx lemonade")


@pytest.mark.full
def test_a_folder_takes_the_hubs_place(serving: Lab, copy_of: str) -> None:
    sh(
        serving,
        f"d=/srv/models/org/Carried; mkdir -p $d; cp {CACHE}/models--Hugging*/snapshots/*/* $d/",
    )
    before = len(asked(serving, "org/Carried"))
    wanted = [{"name": "user.Carried", "checkpoint": "org/Carried"}]
    host = run(serving, models_wanted=wanted, models_folder="/srv/models")
    assert host["failure"] is None, host["failure"]
    assert loaded(serving) == ["Carried"]
    # lemond's own question at a load stays; no list, no file.
    assert {one["path"] for one in asked(serving, "org/Carried")[before:]} <= {
        "/org/Carried/resolve/main/config.json"
    }
    assert run(serving, models_wanted=wanted, models_folder="/srv/models")["changed"] == []
    sh(serving, f"rm -rf /srv/models {CACHE}/models--org--Carried")


@pytest.mark.full
def test_a_built_in_model_that_lies_there_is_seen(serving: Lab) -> None:
    """lemond looks at the disk only now and then; files that came another way must not be asked for again."""
    sh(serving, f"cp -a {CACHE}/models--Hugging* {CACHE}/models--Qwen--Qwen3.5-0.8B")
    host = run(serving, models_wanted=[{"name": BUILT_IN}])
    sh(serving, f"rm -rf {CACHE}/models--Qwen--*")
    assert host["failure"] is None, host["failure"]


def test_options_that_left_models_wanted_are_taken_back(serving: Lab) -> None:
    saved = "cat /var/lib/lemonade/recipe_options.json"
    run(serving, models_wanted=[{"name": OWN, "checkpoint": REPOSITORY, "ctx_size": 1024}])
    assert json.loads(sh(serving, saved)) == {OWN: {"ctx_size": 1024}}
    host = run(serving)
    assert ("models", f"model {OWN}", "clear options") in changed(host)
    assert json.loads(sh(serving, saved)) == {}
    assert run(serving)["changed"] == []


def test_a_model_is_warm_again_after_a_restart(serving: Lab) -> None:
    run(serving)
    before = warm_ups(serving)
    sh(serving, "systemctl restart lemond")
    await_warm(serving, before + 1)
    sh(serving, "systemctl kill -s KILL lemond")  # a crash: systemd starts it again after 5 s
    await_warm(serving, before + 2)


def warm_ups(lab: Lab) -> int:
    """How often the unit has loaded the model."""
    text = sh(lab, "journalctl -u lemonade-deploy-warm -o cat --no-pager")
    return text.count(f"{OWN} is loaded after")


def await_warm(lab: Lab, count: int, timeout: float = 120) -> None:
    """Wait for the unit's load number *count*; the model is then in memory, and no other."""
    until = time.monotonic() + timeout
    while warm_ups(lab) < count:
        assert time.monotonic() < until, sh(lab, "journalctl -u lemonade-deploy-warm -n 5 -o cat")
        time.sleep(0.3)
    assert loaded(lab) == [OWN.removeprefix("user.")]
