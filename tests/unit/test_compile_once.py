# SPDX-License-Identifier: Apache-2.0
"""A payload's sources are compiled once: in a real zip, by a Python of its own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

MODULES = sorted((Path(__file__).parents[2] / "plugins/modules").glob("*.py"))
UTILS = Path(__file__).parents[2] / "plugins/module_utils"
NAME = "ansible_collections.lemonade.deploy.plugins.module_utils"

# Tells how often each source was compiled, and what the module says of itself.
PROGRAM = f"""
import json, sys
sys.path.insert(0, sys.argv[1])
compiled = []
sys.addaudithook(lambda event, values: event == "compile" and compiled.append(str(values[1])))
if sys.argv[2] == "once":
    import {NAME}.compile_once
import {NAME}.told as told, inspect
import {NAME}.package as package
try:
    import {NAME}.absent
except ModuleNotFoundError as error:
    absent = error.name
names = ("told.py", "package/__init__.py")
times = {{name: sum(path.endswith("/" + name) for path in compiled) for name in names}}
said = [told.__file__, told.__spec__.origin, inspect.getsource(told.say), told.say(), absent]
print(json.dumps([times, *said]))
"""


def run(folder: Path, how: str) -> list[object]:
    archive = folder / "payload.zip"
    with zipfile.ZipFile(archive, "w") as payload:
        parts = NAME.split(".")
        for length in range(1, len(parts) + 1):
            payload.writestr("/".join(parts[:length]) + "/__init__.py", "")
        home = "/".join(parts)
        payload.write(UTILS / "compile_once.py", f"{home}/compile_once.py")
        payload.writestr(f"{home}/told.py", "def say():\n    return __name__\n")
        payload.writestr(f"{home}/package/__init__.py", "inside = 1\n")
    argv = [sys.executable, "-c", PROGRAM, str(archive), how]
    told: list[object] = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    return told


def test_a_source_is_compiled_once_and_is_the_same_module(tmp_path: Path) -> None:
    once, usual = run(tmp_path, "once"), run(tmp_path, "usual")
    assert once[0] == {"told.py": 1, "package/__init__.py": usual[0]["package/__init__.py"]}  # type: ignore[index]
    assert once[1:] == usual[1:]
    assert once[-1] == f"{NAME}.absent"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_module_imports_it_before_the_others(path: Path) -> None:
    tree = ast.parse(path.read_text())
    ours = [
        node.names[0].name if isinstance(node, ast.Import) else node.module
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "lemonade" in ast.dump(node)
    ]
    assert ours[0] == f"{NAME}.compile_once"
