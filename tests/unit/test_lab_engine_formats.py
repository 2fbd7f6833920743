# SPDX-License-Identifier: Apache-2.0
"""The files that the lab's engine writes itself: ELF objects, model files, split archives."""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy.domain.assets import parse_partcount
from lemonade_deploy.lab.engine import elf, tiny
from lemonade_deploy.lab.engine.archive import Asset, _split, pack
from lemonade_deploy.lab.engine.tensors import Tensor, Value, gguf, safetensors


@pytest.mark.parametrize("names", [["one"], ["one", "two", "three_with_a_long_name"]])
def test_a_shared_object_gives_its_functions(tmp_path: Path, names: list[str]) -> None:
    file = tmp_path / "libstub.so"
    file.write_bytes(elf.shared_object("libstub.so", names))
    library = ctypes.CDLL(str(file))
    assert [library[name]() for name in names] == [0] * len(names)
    with pytest.raises(AttributeError):
        _ = library["not_there"]


def test_an_extension_module_imports_under_its_name_only(tmp_path: Path) -> None:
    (tmp_path / "_rocm_C.abi3.so").write_bytes(elf.shared_object("_rocm_C.abi3.so", python_module="_rocm_C"))
    (tmp_path / "other.abi3.so").write_bytes(elf.shared_object("other.abi3.so", python_module="_rocm_C"))
    code = "import _rocm_C; assert _rocm_C.__file__.endswith('_rocm_C.abi3.so')\n"
    code += "try:\n import other\nexcept ImportError: print('refused')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"


def test_the_tiny_model_is_the_same_everywhere() -> None:
    files = tiny.hugging_face_files() | {"gguf": tiny.gguf_file()}
    digests = {name: hashlib.sha256(data).hexdigest()[:16] for name, data in files.items()}
    assert digests == {
        "config.json": "4af734b69666d8ae",
        "generation_config.json": "5118c576f38929f3",
        "model.safetensors": "0bf2b737ae8e599f",
        "tokenizer.json": "3e0185f634a8a6c7",
        "tokenizer_config.json": "4377bfcc29af4c8e",
        "gguf": "a10b07912bdefd4d",
    }


def test_the_tiny_model_fits_its_configuration() -> None:
    files = tiny.hugging_face_files()
    config, tokenizer = json.loads(files["config.json"]), json.loads(files["tokenizer.json"])
    assert len(tokenizer["model"]["vocab"]) == config["vocab_size"]
    assert all("".join(pair) in tokenizer["model"]["vocab"] for pair in tokenizer["model"]["merges"])
    # lemond passes its ctx_size (4096 in the kit) as --max-model-len; vLLM refuses more than this.
    assert config["max_position_embeddings"] >= 4096
    header = _header(files["model.safetensors"])
    assert header["lm_head.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]
    assert sum(name.startswith("model.layers.1.") for name in header) == 11


def _header(data: bytes) -> dict[str, dict[str, list[int]]]:
    (length,) = struct.unpack_from("<Q", data)
    found: dict[str, dict[str, list[int]]] = json.loads(data[8 : 8 + length])
    found.pop("__metadata__")
    return found


@given(st.lists(st.integers(-128, 127), min_size=1, max_size=64))
def test_safetensors_holds_the_numbers(numbers: list[int]) -> None:
    values = [number / 128 for number in numbers]
    data = safetensors({"a": Tensor((len(values),), values)})
    begin, end = _header(data)["a"]["data_offsets"]
    start = 8 + struct.unpack_from("<Q", data)[0]
    assert start % 8 == 0
    assert list(struct.unpack(f"<{len(values)}e", data[start + begin : start + end])) == values
    assert len(data) == start + end


def test_gguf_is_aligned_and_typed() -> None:
    metadata: dict[str, Value] = {
        "s": "text",
        "n": 3,
        "f": 0.5,
        "b": False,
        "list": ["x", "yz"],
        "numbers": [1, 3],
    }
    data = gguf(metadata, {"flat": Tensor((3,), [1.0, 2.0, 3.0]), "square": Tensor((1, 2), [0.5, 0.25])})
    magic, version, tensors, pairs = struct.unpack_from("<4sIQQ", data)
    assert (magic, version, tensors, pairs) == (b"GGUF", 3, 2, 6)
    # Each tensor begins at a multiple of 32; one-dimensional ones are float32, the others float16.
    assert data.endswith(
        struct.pack("<3f", 1, 2, 3).ljust(32, b"\0") + struct.pack("<2e", 0.5, 0.25).ljust(32, b"\0")
    )
    assert (len(data) - 64) % 32 == 0


@given(st.binary(max_size=300), st.integers(1, 100))
def test_cutting_loses_nothing(tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    parts = list(_split(io.BytesIO(data), folder, size))
    joined = [(folder / part.name).read_bytes() for part in parts]
    assert b"".join(joined) == data
    assert all(len(piece) == size for piece in joined[:-1])
    assert all(len(piece) > 0 for piece in joined)
    found = [(len(piece), hashlib.sha256(piece).hexdigest()) for piece in joined]
    assert found == [(part.size, part.sha256) for part in parts]


def _tree(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / ".kpack").mkdir()
    (folder / "bin" / "program").write_bytes(bytes(range(256)) * 64)
    (folder / "bin" / "program").chmod(0o755)
    (folder / "bin" / "link").symlink_to("program")
    (folder / ".kpack" / "hidden").write_text("x")
    (folder / ".kpack" / "hidden").chmod(0o600)
    (folder / "twin").hardlink_to(folder / ".kpack" / "hidden")
    return folder


def test_an_archive_is_split_named_and_repeatable(tmp_path: Path) -> None:
    tree = _tree(tmp_path / "tree")
    first = pack(tree, tmp_path / "one", "tag", 200)
    assert first == pack(tree, tmp_path / "two", "tag", 200)
    count = parse_partcount((tmp_path / "one" / "tag-x64.partcount").read_text())
    assert count is not None and count > 1 and len(first) == count + 1
    names = [f"tag-x64.part{number:02d}-of-{count:02d}.tar.gz" for number in range(1, count + 1)]
    assert [asset.name for asset in first] == ["tag-x64.partcount", *names]
    joined = b"".join((tmp_path / "one" / name).read_bytes() for name in names)
    with tarfile.open(fileobj=io.BytesIO(joined)) as archive:
        members = {member.name: member for member in archive}
    assert {"./bin/program", "./bin/link", "./.kpack/hidden", "./twin"} <= set(members)
    assert members["./bin/program"].mode == 0o755
    assert members["./.kpack/hidden"].mode == 0o644  # the service's user must read it
    assert members["./bin/link"].linkname == "program"
    assert members["./twin"].isreg() and members["./.kpack/hidden"].isreg()
    assert {(member.uid, member.mtime) for member in members.values()} == {(0, 0)}


def test_what_is_recorded_of_an_asset_is_true(tmp_path: Path) -> None:
    for asset in pack(_tree(tmp_path / "tree"), tmp_path / "out", "tag", 100):
        data = (tmp_path / "out" / asset.name).read_bytes()
        assert asset == Asset(asset.name, len(data), hashlib.sha256(data).hexdigest())
