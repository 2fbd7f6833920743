# SPDX-License-Identifier: Apache-2.0
"""Bundles and models broken in ways that happen, with the real lemond and the real vLLM: the cause is named.

They come after test_site.py, whose host they take as it is then. lemond says "failed to start within
timeout" to each of them, and tries twice: hence the short time-out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lemonade_deploy.lab import Lab
from lemonade_deploy.lab.engine.models import MODELS

from .kit import host_of, kit

pytestmark = pytest.mark.lab

SITE = "/opt/lemonade-deploy/vllm-rocm/current/lib/python3*/site-packages"
CACHE = "/var/cache/huggingface/hub/models--HuggingFaceTB--SmolLM2-135M-Instruct"
SHORT, LONG = (
    30,
    240,
)  # s for a load; the longer one for a machine too slow to come to the point in the short one
ADDRESS = "127.0.0.1:13305"


def run(lab: Lab, host: str, *more: str) -> dict[str, Any]:
    """The serving layers; the host's part of the document."""
    ran = kit(
        *("site.yml", "-i", str(lab.inventory_path), "-l", host, "-t", "lemonade_server,models"),
        *("--json", *more),
    )
    return host_of(ran, host)


def sh(lab: Lab, host: str, script: str) -> str:
    """A script as root on the host; it must end well."""
    done = lab.exec(host, ["sudo", "sh", "-ec", script])
    assert done.rc == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def real(lab: Lab, main_host: str) -> Iterator[str]:
    """A host that serves with the real vLLM; afterwards as before."""
    ran = kit("site.yml", "-i", str(lab.inventory_path), "-l", main_host, "--json")
    assert host_of(ran, main_host)["failure"] is None
    yield main_host
    assert run(lab, main_host)["failure"] is None


def told(lab: Lab, host: str, breaking: str, mending: str) -> dict[str, str]:
    """The failure of a load while something is broken."""
    # Stopped: a load that the test before began, and lemond is still at, would be joined.
    sh(lab, host, f"systemctl stop lemond; {breaking}")
    try:
        for seconds in (SHORT, LONG):
            limits = {"lemonade_server_global_timeout": seconds, "models_load_timeout": seconds}
            failure = run(lab, host, "-e", json.dumps(limits))["failure"]
            assert failure is not None, "it loads all the same"
            if (
                "still starting" not in failure["message"]
                and "was not loaded after" not in failure["message"]
            ):
                break
    finally:
        sh(lab, host, mending)
    assert failure["layer"] == "models" and failure["remedy"]
    assert "within timeout" not in failure["message"]
    return dict(failure)


def test_a_library_of_the_bundle_is_missing(lab: Lab, real: str) -> None:
    back = f"mv /root/libc10.so $(dirname $(ls {SITE}/torch/lib/libtorch.so))/"
    failure = told(lab, real, f"mv {SITE}/torch/lib/libc10.so /root/", back)
    assert "A shared library is missing" in failure["message"] and "libc10.so" in failure["message"]


@pytest.mark.full
def test_a_python_module_of_the_bundle_is_missing(lab: Lab, real: str) -> None:
    back = f"mv /root/uvicorn $(dirname $(ls -d {SITE}/torch))/"
    failure = told(lab, real, f"mv {SITE}/uvicorn /root/", back)
    assert "A Python module of the bundle is missing" in failure["message"]
    assert "uvicorn" in failure["message"]


@pytest.mark.full
def test_a_weight_file_is_cut_short(lab: Lab, real: str) -> None:
    file = f"$(ls {CACHE}/snapshots/*/model.safetensors)"
    breaking = f"cp -a {file} /root/; truncate -s 1000000 {file}"
    failure = told(lab, real, breaking, f"cat /root/model.safetensors > {file}; rm /root/model.safetensors")
    assert "The model's weights are damaged or incomplete" in failure["message"]


@pytest.mark.full
def test_an_architecture_that_the_bundle_does_not_know(lab: Lab, real: str) -> None:
    """The check before a download never sees files that are there already: the engine's own word counts."""
    file = f"$(ls {CACHE}/snapshots/*/config.json)"
    breaking = f'cp -a {file} /root/; sed -i \'s/"model_type": *"[^"]*"/"model_type": "moon"/\' {file}'
    failure = told(lab, real, breaking, f"cat /root/config.json > {file}; rm /root/config.json")
    assert "does not know the model's architecture" in failure["message"] and "moon" in failure["message"]


# Each client keeps its connection, as OpenAI's and other libraries do: lemond's socket queues five new
# ones only, and of thousands of connections opened anew some are reset (docs/serving.md).
CROWD = """
import concurrent.futures, http.client, json, sys, time
until, model = time.monotonic() + float(sys.argv[1]), sys.argv[2]

def client(number):
    done, wrong, opened = 0, [], 0
    connection = http.client.HTTPConnection("@ADDRESS@", timeout=120)
    while time.monotonic() < until:
        words = [{"role": "user", "content": f"{number} {done}"}]
        body = json.dumps({"model": model, "max_tokens": 8, "messages": words})
        opened += connection.sock is None  # the server may say that an answer was the connection's last
        try:
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            told = json.load(connection.getresponse())
            assert told["usage"]["completion_tokens"] > 0 and "error" not in told, told
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
            connection.close()
        done += 1
    return done, wrong, opened

with concurrent.futures.ThreadPoolExecutor(32) as pool:
    found = list(pool.map(client, range(32)))
print(json.dumps({"done": sum(n for n, _, _ in found), "least": min(n for n, _, _ in found),
                  "opened": sum(o for _, _, o in found), "wrong": [w for _, ws, _ in found for w in ws]}))
"""


@pytest.mark.full
def test_32_clients_for_two_minutes_without_an_error(lab: Lab, real: str) -> None:
    """The smallest model, which answers in no time: what is tried is lemond and vLLM under many clients."""
    tiny = MODELS["vllm"][1]
    wanted = json.dumps({"models_wanted": [{"name": tiny.name, "checkpoint": tiny.repository}]})
    host = run(lab, real, "-e", wanted)
    assert host["failure"] is None, host["failure"]
    began = time.monotonic()
    done = lab.exec(
        real, ["sudo", "python3", "-", "120", "user.tiny"], stdin=CROWD.replace("@ADDRESS@", ADDRESS)
    )
    assert done.rc == 0, done.stderr
    told = json.loads(done.stdout)
    print(told)
    assert told["wrong"] == [] and told["least"] >= 3, told
    assert time.monotonic() - began > 119
