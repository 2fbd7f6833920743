# SPDX-License-Identifier: Apache-2.0
"""Values of the right type that can never work are found before any host is touched."""

from __future__ import annotations

from typing import Any

import pytest

from lemonade_deploy import limits, specs, validate
from lemonade_deploy.validate import Variable

KNOWN = specs.load()

IMPOSSIBLE = [
    ("lemonade_server_port", 99999),
    ("lemonade_server_port", 0),
    ("lemonade_server_port", "70000"),
    ("lemonade_server_ctx_size", 0),
    ("lemonade_server_ctx_size", -2),
    ("lemonade_server_global_timeout", 0),
    ("lemonade_server_global_timeout", -5),
    ("activate_reboot_timeout", 0),
    ("models_load_timeout", -1),
    ("models_pull_timeout", 0),
    ("models_hub_url", "mirror.example.com"),
    ("models_hub_url", ""),
    ("models_folder", "models"),
    ("models_folder", "~/models"),
    ("verify_timeout", 0),
    ("verify_max_tokens", 0),
    ("vllm_rocm_keep", -1),
    ("preflight_min_disk_gib", -1),
    ("gpu_memory_gtt_gib", "banana"),
    ("gpu_memory_gtt_gib", 0),
    ("gpu_memory_gtt_gib", "-4"),
    ("gpu_memory_gtt_gib", ""),
    ("gpu_memory_service_user", "root x"),
    ("amdgpu_driver_repo_version", "v31"),
    ("amdgpu_driver_repo_version", "31.20; rm"),
    ("amdgpu_driver_repo_version", ""),
    ("amdgpu_driver_repo_key_fingerprint", "CA8B"),
    ("lemonade_server_ppa_fingerprint", "xyz"),
    ("lemonade_server_deb_sha256", "abc"),
    ("lemonade_server_ppa", "nobody"),
    ("lemonade_server_ppa_url", "ppa.launchpadcontent.net"),
    ("vllm_rocm_base_url", ""),
    ("vllm_rocm_depot_url", "depot:8443"),
    ("vllm_rocm_release", "newest"),
    ("kernel_version", "seven"),
    ("kernel_mainline_url", "kernel.ubuntu.com/mainline"),
    ("kernel_mainline_url", "ftp://kernel.ubuntu.com/mainline"),
    ("kernel_mainline_url", ""),
    ("kernel_mainline_key", "key.asc"),
    ("kernel_mainline_key_fingerprint", "17C622B0"),
    ("vllm_rocm_mirrors", ["https://mirror/x", "mirror"]),
]


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_an_impossible_value_is_named_with_its_place(name: str, value: Any) -> None:
    (problem,) = validate.check([Variable(name, value, "plain", "hosts.yml", 7)], KNOWN)
    assert problem.startswith(f"hosts.yml:7: {name}: the value {value!r} is ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lemonade_server_port", "8080"),
        ("lemonade_server_ctx_size", -1),
        ("gpu_memory_gtt_gib", 96),
        ("gpu_memory_gtt_gib", "auto"),
        ("amdgpu_driver_repo_version", "latest"),
        ("amdgpu_driver_repo_key_fingerprint", "ca8b b472 7a47 b4d0 9b4e e896 9386 b48a 1a69 3c5c"),
        ("vllm_rocm_release", "vllm0.22.1-rocm7.13.0"),
        ("vllm_rocm_release", "vllm0.22.1-rocm7.13.0-gfx1151"),
        ("vllm_rocm_depot_url", "https://10.0.0.2:8443"),
        ("kernel_version", "6.18.20-061820-generic"),
        ("kernel_version", "6.18.20"),
        ("kernel_mainline_url", "/srv/mainline"),
        ("kernel_mainline_url", "file:///srv/mainline"),
        ("kernel_mainline_url", "https://mirror.example/mainline/"),
        ("kernel_mainline_key", ""),
        ("kernel_mainline_key", "/srv/key.asc"),
        ("kernel_mainline_key_fingerprint", "60aa 7b6f 3043 4ae6 8e56 9963 e50c 6a09 17c6 22b0"),
        ("vllm_rocm_keep", 0),
    ],
)
def test_possible_values_pass(name: str, value: Any) -> None:
    assert validate.check([Variable(name, value)], KNOWN) == []


def test_every_default_passes_and_every_limit_is_of_a_variable_that_is_there() -> None:
    for name in (*limits.RANGES, *limits.FORMS, limits.CTX_SIZE):
        spec = KNOWN.find(name)
        assert spec is not None, name
        assert (
            limits.fault(name, spec.get("default") or ("" if spec.get("type", "str") == "str" else 0)) == ""
        )


def test_templates_are_not_judged() -> None:
    assert validate.check([Variable("lemonade_server_port", "{{ port }}", "template")], KNOWN) == []


def test_no_time_is_longer_than_clocks_take() -> None:
    times = [name for name in limits.RANGES if name.endswith("_timeout")]
    assert len(times) > 5
    assert [name for name in times if not limits.fault(name, 10**12)] == []
    assert [name for name in times if limits.fault(name, 86_400)] == []
