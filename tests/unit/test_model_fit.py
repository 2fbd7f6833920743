# SPDX-License-Identifier: Apache-2.0
"""What a model needs against what is there; what the bundle knows, read from its own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.domain import bundle_models, model_files, model_fit, model_options
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.hub import File, Repository
from lemonade_deploy.domain.hub_cache import Limits, OutOfTime
from lemonade_deploy.domain.lemond_models import Wanted
from lemonade_deploy.domain.refusal import Refused

GIB = 1024**3
# Qwen3-0.6B's own numbers: 28 layers, 8 key heads of 128, 112 KiB a token.
QWEN = {
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 1024,
    "max_position_embeddings": 40960,
}
HALO = model_fit.Memory(96 * GIB, "0.5 GiB VRAM and 95.5 GiB GTT")


def test_cache_sizes_as_vllm_reads_them() -> None:
    def size(text: str) -> int | None:
        return model_fit.kv_cache_bytes(model_fit.arguments(text))

    assert size("") == 4 * GIB  # lemond's own
    assert size("--kv-cache-memory-bytes 256M") == 256 * 1024**2
    assert size("--kv-cache-memory-bytes=1000") == 1000
    assert size("--gpu-memory-utilization 0.5") is None
    assert size("--kv-cache-memory-bytes 1.2.3G") is None  # vLLM will say so
    assert model_fit.arguments("--a 1 --flag --b=2", "--a 3") == {"--a": "3", "--flag": "", "--b": "2"}


def test_bytes_of_a_token() -> None:
    assert model_fit.kv_bytes_per_token(QWEN) == 112 * 1024
    assert model_fit.kv_bytes_per_token({"text_config": QWEN}) == 112 * 1024
    assert model_fit.kv_bytes_per_token({**QWEN, "layer_types": ["full_attention"] * 28}) == 112 * 1024
    for odd in ({"layer_types": ["linear_attention", "full_attention"]}, {"kv_lora_rank": 512}):
        assert model_fit.kv_bytes_per_token({**QWEN, **odd}) is None
    assert model_fit.kv_bytes_per_token({}) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"text_config": "none"},
        {"layer_types": [{"kind": 1}]},
        {"layer_types": 28},
        {"num_hidden_layers": "many"},
        {"head_dim": None, "hidden_size": [1024]},
        {"num_attention_heads": {}, "num_key_value_heads": None},
    ],
)
def test_a_configuration_of_an_odd_form_is_vllms_to_judge(odd: dict[str, Any]) -> None:
    model_fit.check("m", GIB, json.dumps({**QWEN, **odd}), {}, 4096, HALO)


def check(weights: float, ctx_size: int = 4096, args: str = "", memory: Any = HALO, **config: Any) -> None:
    model_fit.check(
        "m", int(weights * GIB), json.dumps({**QWEN, **config}), model_fit.arguments(args), ctx_size, memory
    )


def test_what_fits_and_what_does_not() -> None:
    check(90)
    with pytest.raises(
        Refused, match=r"93\.0 GiB of weights and 4\.0 GiB of KV cache, the GPU has 96\.0 GiB"
    ):
        check(93)
    check(93, memory=None)  # nobody knows: nothing is refused
    check(93, args="--gpu-memory-utilization 0.9")
    with pytest.raises(Refused, match=r"40000 tokens of context need 4\.3 GiB of KV cache, it gets 4\.0 GiB"):
        check(1, 40000)
    check(1, 40000, "--kv-cache-memory-bytes 8G")
    check(1, 40000, "--kv-cache-dtype fp8")
    with pytest.raises(Refused, match="made for 40960 tokens, ctx_size is 50000"):
        check(1, 50000, "--kv-cache-memory-bytes 32G")
    check(1, 50000, "--kv-cache-memory-bytes 32G", rope_scaling={"type": "yarn"})
    check(1, -1)


def gpu(root: Path, vram: int, gtt: int, card: bool = False, name: str = "renderD128") -> None:
    folder = root / "sys/class/drm" / name / "device"
    folder.mkdir(parents=True)
    (folder / "mem_info_vram_total").write_text(f"{vram}\n")
    (folder / "mem_info_gtt_total").write_text(f"{gtt}\n")
    if card:
        (folder / "board_info").write_text("x")


def test_memory_of_an_apu_is_both_of_a_card_its_own(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal:       {128 * 1024**2} kB\n")
    host = Host(str(tmp_path))
    assert model_fit.gpu_memory(host) is None
    gpu(tmp_path, GIB // 2, 62 * GIB)
    assert model_fit.gpu_memory(host) == model_fit.Memory(int(62.5 * GIB), "0.5 GiB VRAM and 62.0 GiB GTT")
    # What the next boot brings counts, but no more than there is.
    told = model_fit.gpu_memory(host, 115 * GIB // 4096)
    assert told and told.size == int(115.5 * GIB)
    told = model_fit.gpu_memory(host, 999 * GIB // 4096)
    assert told and told.size == int(128.5 * GIB)
    gpu(tmp_path, 200 * GIB, 8 * GIB, True, "renderD129")
    told = model_fit.gpu_memory(host)
    assert told and told.words == "200.0 GiB VRAM"


# --- the bundle ------------------------------------------------------------------

SITE = "lib/python3.13/site-packages"
AUTO = "transformers/models/auto"
FILES = {
    f"{AUTO}/auto_mappings.py": 'CONFIG_MAPPING_NAMES = OrderedDict([("qwen3", "Qwen3Config")])\n',
    f"{AUTO}/configuration_auto.py": 'CONFIG_MAPPING_NAMES.update({"llama": "LlamaConfig"})\n',
    f"{AUTO}/modeling_auto.py": 'X = OrderedDict([("bert", "BertForMaskedLM")])\n',
    "vllm/transformers_utils/config.py": '_CONFIG_REGISTRY: dict = LazyConfigDict(chatglm="ChatGLMConfig")\n',
    "vllm/model_executor/models/registry.py": (
        '_TEXT_GENERATION_MODELS = {"Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM")}\n'
        '_PREVIOUSLY_SUPPORTED_MODELS = {"OldForCausalLM": "0.9"}\n'
    ),
}


@pytest.fixture
def bundle(tmp_path: Path) -> Host:
    for name, text in FILES.items():
        path = tmp_path / "b" / SITE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(str(tmp_path))


def test_what_a_bundle_knows(bundle: Host, tmp_path: Path) -> None:
    known = bundle_models.read(bundle, "/b")
    assert known is not None
    assert known.types == {"qwen3", "llama", "chatglm"}
    assert known.architectures == {"Qwen3ForCausalLM"}
    assert known.classes == {"BertForMaskedLM"}
    assert bundle_models.read(Host(str(tmp_path)), "/nothing") is None
    (tmp_path / "b" / SITE / "vllm/model_executor/models/registry.py").write_text("models = load()\n")
    assert bundle_models.read(bundle, "/b") is None, "another form is no ground to refuse"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, ""),
        ({"model_type": "chatglm", "architectures": ["BertForMaskedLM"]}, ""),
        ({"model_type": "moon", "architectures": ["MoonForCausalLM"], "auto_map": {"AutoConfig": "x.y"}}, ""),
        ({"model_type": "moon", "architectures": ["MoonForCausalLM"]}, "type moon, which the transformers"),
        ({"model_type": "qwen3", "architectures": ["MoonForCausalLM"]}, "MoonForCausalLM, which the vLLM"),
        ({"model_type": "llama", "architectures": ["OldForCausalLM"]}, "OldForCausalLM, which the vLLM"),
        ({"model_type": "llama", "architectures": 1}, ""),
        ([], "its config.json is no JSON object"),
    ],
)
def test_models_against_the_bundle(bundle: Host, config: Any, words: str) -> None:
    known = bundle_models.read(bundle, "/b")
    assert known is not None
    if not words:
        bundle_models.check(known, "org/m", json.dumps(config), "/b")
        return
    with pytest.raises(Refused, match=words):
        bundle_models.check(known, "org/m", json.dumps(config), "/b")


# --- before a download -------------------------------------------------------------


class Source:
    """A hub that counts what is asked of it."""

    def __init__(self, repository: Repository, config: str = "{}") -> None:
        self._repository, self._config = repository, config
        self.asked: list[str] = []

    def repository(self, name: str) -> Repository:
        self.asked.append(f"list {name}")
        return self._repository

    def check_access(self, repository: Repository) -> None:
        self.asked.append("access")

    def text(self, repository: Repository, path: str) -> str | None:
        return self._config

    def download(self, repository: Repository, file: File) -> Any:
        raise AssertionError("a byte was downloaded before all was checked")


def test_disk_is_counted_for_all_models_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(str(tmp_path))
    source = Source(Repository("org/m", "c" * 40, False, (File("model.safetensors", 6 * GIB),)))
    store = model_files.Store(source)
    wanted = [(Wanted("a"), "org/a"), (Wanted("b"), "org/b")]
    monkeypatch.setattr(model_files.disk, "free_bytes", lambda _host, _path: 8 * GIB)
    assert set(model_files.check(host, wanted[:1], store)) == {"org/a"}
    with pytest.raises(Refused, match=r"12\.0 GiB to download, /var/cache/huggingface has 8\.0 GiB free"):
        model_files.check(host, wanted, store)
    assert source.asked[0] == "list org/a"


def test_the_token_comes_from_environment_files(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert model_files.token(host) == ""
    host.write("/etc/default/lemond", "# x\nHF_TOKEN='hf_users'\nOTHER=1\n")
    assert model_files.token(host) == "hf_users"
    host.write("/etc/lemonade-deploy/lemond.env", 'HF_TOKEN="hf_ours"\n')
    assert model_files.token(host) == "hf_ours"
    sent = {
        url: model_files.store(host, url, "", None, False, 0).source._token  # type: ignore[attr-defined]
        for url in ("https://huggingface.co", "http://mirror.lan")
    }
    assert sent == {"https://huggingface.co": "hf_ours", "http://mirror.lan": ""}


# --- options that are taken back ------------------------------------------------------


def test_options_of_ours_that_are_no_longer_wanted() -> None:
    before = {"user.A": {"ctx_size": 1024}, "B": {"ctx_size": 512, "vllm_args": "--x"}}
    saved = {"user.A": {"ctx_size": 1024, "other": 1}, "B": {"ctx_size": 512, "vllm_args": "--mine"}}
    wanted = [Wanted("B", ctx_size=512)]
    assert model_options.stale(before, wanted, saved) == {"user.A": {"ctx_size": None}}
    assert model_options.stale(before, wanted, {}) == {}, "lemond has none of them any more"


def test_what_is_saved_is_remembered(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    model_options.remember(host, [Wanted("A")])
    assert not host.exists(model_options.STATE)
    model_options.remember(host, [Wanted("A", ctx_size=1), Wanted("B")])
    assert model_options.remembered(host) == {"A": {"ctx_size": 1}}
    model_options.remember(host, [])
    assert model_options.remembered(host) == {}
    host.write(model_options.STATE, "[broken")
    assert model_options.remembered(host) == {}


def test_limits() -> None:
    assert not Limits().over
    assert Limits(0.0).over
    assert str(OutOfTime(1, 2, "f")) == "f"
