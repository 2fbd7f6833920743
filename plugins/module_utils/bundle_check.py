# SPDX-License-Identifier: Apache-2.0
"""Static checks of an unpacked bundle: all that can be known without starting the GPU.

The launcher itself is started, with a `sitecustomize` of ours on PYTHONPATH (Lemonade puts
its own there the same way), so imports and compiler are tried in exactly the environment
that the engine gets. The probe ends the process before the server's main program begins.
Runs as the user `nobody`: what only root can read would fail for the service too.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from typing import Any

from . import bundle_layout
from .host import Completed, Host
from .module import Refused

TIMEOUT = 600  # s; importing torch from a cold disk takes a minute at worst
NOBODY = 65534

_PROBE = """\
import json, os, subprocess, sys

def imported(name):
    try:
        __import__(name)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:2000]
    return None

def compiled(clang, folder):
    source, library = os.path.join(folder, "stub.c"), os.path.join(folder, "stub.so")
    with open(source, "w") as stream:
        stream.write("#include <stdlib.h>\\nint lemonade_stub(void) { return abs(-1); }\\n")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LEMONADE_DEPLOY_PROBE")}
    command = [clang, "-shared", "-fPIC", "-o", library, source]
    options = {"capture_output": True, "text": True, "errors": "replace", "timeout": 120}
    try:
        done = subprocess.run(command, env=environment, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return (done.stderr.strip() or f"exit code {done.returncode}")[-2000:]
    return None if os.path.isfile(library) and os.path.getsize(library) else "it wrote no library"

request = json.loads(os.environ.get("LEMONADE_DEPLOY_PROBE", "null"))
if request:
    answer = {
        "executable": os.path.realpath(sys.executable),
        "clang": compiled(request["clang"], request["folder"]),
        "imports": {name: imported(name) for name in ("vllm._C", "vllm._rocm_C")},
    }
    place = os.path.join(request["folder"], "answer.json")
    with open(place + ".new", "w") as stream:
        json.dump(answer, stream)
    os.replace(place + ".new", place)
    os._exit(0)
"""


def check(host: Host, tree: str, family: str) -> None:
    """Raise Refused, with a message for each problem, where the bundle cannot work.

    *tree* is a path on the host.
    """
    root = host.path(tree)
    problems = bundle_layout.missing(root, family)
    if not problems:
        folder = tempfile.mkdtemp(prefix="lemonade-deploy-check-")
        try:
            problems = _judge(root, _probe(host, root, folder))
        except OSError as error:
            error.filename = error.filename or folder + "/"  # a write that fails does not say where
            raise
        finally:
            shutil.rmtree(folder)
    if problems:
        raise Refused(
            "The bundle was unpacked as locked but fails its static checks: " + "; ".join(problems) + ".",
            f"It was not activated. {_remedy(problems)}",
        )


def _remedy(problems: list[str]) -> str:
    """The usual cause of a compiler that lacks stdlib.h or crti.o is the host (lemonade#2749, #2750)."""
    if any(os.strerror(code) in problem for problem in problems for code in (errno.ENOSPC, errno.EDQUOT)):
        return f"Free some space in {tempfile.gettempdir()}, then run the same command again."
    if all("stdlib.h" in problem or "crti.o" in problem for problem in problems):
        return "The host lacks the C library's headers: keep libc6-dev in vllm_rocm_packages."
    return "Choose another release with vllm_rocm_release."


def _probe(host: Host, root: str, folder: str) -> dict[str, Any] | str:
    """What the probe found, or how the launcher failed before it ran."""
    with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as stream:
        stream.write(_PROBE)
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    done = _run(host, root, folder, (bundle_layout.SERVER, "--help"), {})
    answer = _answer(folder)
    if answer is None and done.rc == 0:
        # A launcher that works but is no way into Python: ask the bundled Python itself.
        places = [os.path.join(root, "lib"), *bundle_layout.every(root, bundle_layout.LIBRARIES)]
        python = bundle_layout.first(root, bundle_layout.PYTHON) or ""
        done = _run(host, root, folder, (python, "-c", ""), {"LD_LIBRARY_PATH": ":".join(places)})
        answer = _answer(folder)
    if answer is None:
        tail = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-8:])
        return f"the launcher did not start the bundled Python (exit code {done.rc}): {tail}"
    return answer


def _run(host: Host, root: str, folder: str, argv: tuple[str, ...], extra: dict[str, str]) -> Completed:
    request = {"clang": bundle_layout.first(root, bundle_layout.CLANG), "folder": folder}
    environment = {
        "PYTHONPATH": folder,
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LEMONADE_DEPLOY_PROBE": json.dumps(request),
        "HOME": folder,
        "XDG_CACHE_HOME": os.path.join(folder, "cache"),
        "TMPDIR": folder,
        **extra,
    }
    command = [os.path.join(root, argv[0]), *argv[1:]]
    if os.geteuid() == 0:
        user = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")
        command = ["setpriv", *user, "--", *command]
    return host.run(command, check=False, env=environment, timeout=TIMEOUT)


def _answer(folder: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, "answer.json"), encoding="utf-8") as stream:
            found: dict[str, Any] = json.load(stream)
    except FileNotFoundError:
        return None
    return found


def _judge(root: str, found: dict[str, Any] | str) -> list[str]:
    if isinstance(found, str):
        return [found]
    problems = []
    if not str(found["executable"]).startswith(os.path.realpath(root) + "/"):
        problems.append(f"the launcher started {found['executable']}, not the bundled Python")
    for name, error in found["imports"].items():
        if error:
            problems.append(f"`import {name}` fails: {error}")
    if found["clang"]:
        problems.append(f"the bundled compiler cannot compile a stub: {found['clang']}")
    return problems
