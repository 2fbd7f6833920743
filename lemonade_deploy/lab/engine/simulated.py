# SPDX-License-Identifier: Apache-2.0
"""The simulated AMD parts of a lab bundle: what checks of AMD's bundle look for, honestly labelled.

Layout of lemonade-sdk/vllm-rocm's archives (its build workflow and qualification scripts): GPU
code objects in hidden ``.kpack`` folders, ROCm's runtime in ``_rocm_sdk_core``, the C extension
``vllm/_rocm_C.abi3.so`` and a bundled clang for Triton's stubs.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from ...domain.gfx import FAMILIES
from . import elf

METADATA = "lemonade-lab.json"  # at the bundle's root; AMD's bundle has no such file
README = "README.simulated"
RUNTIME_LIBRARIES = ("libamdhip64.so.7", "libhsa-runtime64.so.1", "libamd_comgr.so.3", "libamd_smi.so.26")


def asset(name: str) -> bytes:
    """A file of this package's ``files`` folder."""
    return (files(__package__) / "files" / name).read_bytes()


def write(path: Path, data: bytes, mode: int = 0o644) -> str:
    """Write a new file (never through a hard link of the cache) and give its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def add_amd_parts(bundle: Path, site: Path, family: str) -> list[str]:
    """Put every simulated AMD part into *site* (the bundle's site-packages).

    Returns their paths relative to *bundle*, for the README and the metadata.
    """
    core = site / "_rocm_sdk_core" / "lib"
    libraries = site / "_rocm_sdk_libraries"
    made = []
    for gfx in sorted(gfx for gfx, served_by in FAMILIES.items() if served_by == family):
        made.append(write(site / "torch" / ".kpack" / f"torch_{gfx}.kpack", _kpack("torch", gfx)))
        made.append(write(libraries / ".kpack" / f"blas_{gfx}.kpack", _kpack("blas", gfx)))
    made += [
        write(
            site / "vllm" / "_rocm_C.abi3.so",
            elf.shared_object("_rocm_C.abi3.so", python_module="_rocm_C"),
            0o755,
        ),
        write(libraries / "lib" / "librocblas.so.5", elf.shared_object("librocblas.so.5"), 0o755),
    ]
    made += [write(core / name, elf.shared_object(name), 0o755) for name in RUNTIME_LIBRARIES]
    made += [
        write(core / "llvm" / "bin" / "clang", asset("clang"), 0o755),
        write(core / "llvm" / "lib" / "empty.so", elf.shared_object("empty.so"), 0o755),
    ]
    return [str(Path(path).relative_to(bundle)) for path in made]


def _kpack(library: str, gfx: str) -> bytes:
    text = f"SIMULATED by the lemonade-deploy lab: code objects of {library} for {gfx}\n"
    return text.encode() * 16


def label(bundle: Path, engine: str, version: str, note: str, family: str, simulated: list[str]) -> None:
    """Say inside the bundle what it is: a README for people, JSON for programs."""
    text = asset(README).decode()
    listing = "\n".join(f"  {path}" for path in simulated)
    write(
        bundle / README,
        text.format(engine=engine, engine_version=version, engine_note=note, simulated=listing).encode(),
    )
    facts = {
        "lab": True,
        "engine": engine,
        "engine_version": version,
        "family": family,
        "simulated": simulated,
    }
    write(bundle / METADATA, (json.dumps(facts, indent=2) + "\n").encode())
