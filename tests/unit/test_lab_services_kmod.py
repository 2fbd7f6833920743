# SPDX-License-Identifier: Apache-2.0
"""Stub kernel modules: what is written is what kmod's tools and the lab's firmware read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy.lab import kmod

MODULE = {"name": "amdgpu", "version": "6.16.13", "srcversion": "ABC", "vermagic": "6.14.0-37-generic SMP "}
WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=80)


@given(version=WORDS, gfx=WORDS, cwsr=st.sampled_from(kmod.CWSR_KINDS), packed=st.booleans())
def test_fields_come_back(version: str, gfx: str, cwsr: str, packed: bool) -> None:
    data = kmod.module_bytes(**{**MODULE, "version": version}, lab_cwsr=cwsr, lab_gfx=gfx)
    info = kmod.read_modinfo(kmod.zstd_stored(data) if packed else data)
    assert (info["version"], info["lab_gfx"], info["lab_cwsr"]) == (version, gfx, cwsr)
    assert info["vermagic"] == MODULE["vermagic"]


def test_in_tree_module_has_no_version() -> None:
    assert "version" not in kmod.read_modinfo(kmod.module_bytes(**{**MODULE, "version": None}))


def test_repeated_keys_are_kept() -> None:
    data = kmod.module_bytes(**MODULE, parms={"a": "int", "b": "ulong"})
    assert kmod.read_modinfo(data)["parmtype"] == "a:int\nb:ulong"


@given(st.binary(max_size=200_000))
def test_stored_zstd_frames_unpack(data: bytes) -> None:
    assert kmod.unpack(kmod.zstd_stored(data)) == data


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the program zstd")
@pytest.mark.parametrize("size", [0, 1, 65536, 200_000])
def test_zstd_agrees_both_ways(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    unpacked = subprocess.run(["zstd", "-dcq"], input=kmod.zstd_stored(data), capture_output=True, check=True)
    assert unpacked.stdout == data
    packed = subprocess.run(["zstd", "-19cq"], input=data, capture_output=True, check=True)
    assert kmod.unpack(packed.stdout) == data


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + bytes(200)])
def test_what_is_no_module_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        kmod.read_modinfo(data)


def test_truncated_module_is_refused() -> None:
    data = kmod.module_bytes(**MODULE)
    with pytest.raises(ValueError):
        kmod.read_modinfo(data[: len(data) // 2])


@pytest.mark.parametrize("fields", [{"lab_cwsr": "good"}, {"depends": "ttm"}])
def test_unknown_lab_fields_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        kmod.module_bytes(**MODULE, **fields)


def test_undefined_symbols_are_what_a_linker_sees(tmp_path: Path) -> None:
    path = tmp_path / "amdgpu.ko"
    kmod.write_module(path, **MODULE, imports=("ttm_bo_init", "kcl_x"), exports=("amdgpu_y",))
    data = path.read_bytes()
    assert b"\0ttm_bo_init\0kcl_x\0" in data
    assert b"amdgpu_y\0" in data
    if shutil.which("readelf"):
        shown = subprocess.run(["readelf", "-sW", path], capture_output=True, text=True, check=True)
        assert shown.stderr == ""
        undefined = [
            line.split()[-1] for line in shown.stdout.splitlines() if " UND " in line and "GLOBAL" in line
        ]
        assert undefined == ["ttm_bo_init", "kcl_x"]
