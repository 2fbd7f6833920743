# SPDX-License-Identifier: Apache-2.0
"""The same release on a lab host, in turn: our lay-down from a depot, and lemond's own POST /v1/install.

lemond is set up by the kit (role lemonade_server, ``vllm_rocm_installer: lemond``), which gives it the
release's tag as ``vllm.rocm_bin``: its built-in pin does not count then. It downloads from
https://github.com, which is the lab's release server there. Its 300 s for tar suffice for 1.6 GB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lemonade_deploy.domain.lock import Release

ROOT = Path(__file__).resolve().parents[1]
LAB = "/var/lib/lemonade-lab-bench"
CODE = "/opt/benchmark"

# On the host. Both sides begin without a tree and with a disk that has come to rest.
LEMOND = """
import json, shutil, subprocess, time, urllib.request
def post(path, body):
    request = urllib.request.Request("http://127.0.0.1:13305" + path, json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=1500) as reply:
        return json.load(reply)
folder = "/var/cache/lemonade/bin/vllm"
shutil.rmtree(folder, ignore_errors=True)
subprocess.run(["sync", "-f", "/var/tmp"])
began = time.monotonic()
said = post("/v1/install", {"recipe": "vllm", "backend": "rocm"})
seconds = time.monotonic() - began
version = open(folder + "/rocm/version.txt").read()
shutil.rmtree(folder)
subprocess.run(["sync", "-f", "/var/tmp"])
print(json.dumps({"seconds": seconds, "said": said, "version": version}))
"""
OURS = f"""
import json, os, shutil, subprocess, sys
root = "{CODE}/root"
shutil.rmtree(root, ignore_errors=True)
os.makedirs(root + "/run")
subprocess.run(["sync", "-f", "/var/tmp"])
argv = [sys.executable, "-m", "benchmarks._lay_down", root, "@URL@", "{CODE}/lock.json"]
told = subprocess.run(argv, cwd="{CODE}", stdout=subprocess.PIPE, check=True).stdout
shutil.rmtree(root)
subprocess.run(["sync", "-f", "/var/tmp"])
print(told.decode())
"""


def kit(*arguments: str) -> str:
    """Run the command; its standard output."""
    argv = [sys.executable, "-m", "lemonade_deploy", *arguments]
    environment = {**os.environ, "LEMONADE_LAB_DIR": LAB}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(
            f"lemonade-deploy {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}"
        )
    return done.stdout


def on_host(script: str) -> dict[str, Any]:
    """Run a Python program on the host as root; the JSON that it prints."""
    argv = [sys.executable, "-m", "lemonade_deploy", "lab", "exec", "lab1", "--", "sudo", "python3", "-"]
    environment = {**os.environ, "LEMONADE_LAB_DIR": LAB}
    done = subprocess.run(argv, env=environment, input=script, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"on the lab host:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def copy_code(lock: Path) -> None:
    """What the lay-down needs, beside its lock file."""
    with tempfile.TemporaryFile() as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(ROOT / "plugins" / "module_utils", "lemonade_deploy/domain")
            for name in ("__init__.py", "_lay_down.py"):
                tar.add(ROOT / "benchmarks" / name, f"benchmarks/{name}")
            tar.add(lock, "lock.json")
        archive.seek(0)
        unpack = (
            f"mkdir -p {CODE} && tar -x -C {CODE} --no-same-owner && touch {CODE}/lemonade_deploy/__init__.py"
        )
        argv = [
            sys.executable,
            "-m",
            "lemonade_deploy",
            "lab",
            "exec",
            "lab1",
            "--",
            "sudo",
            "sh",
            "-c",
            unpack,
        ]
        subprocess.run(argv, env={**os.environ, "LEMONADE_LAB_DIR": LAB}, stdin=archive, check=True, cwd=ROOT)


def measure(
    runs: int,
    release: Release,
    depot: Path,
    lock: Path,
    served: Callable[[Path, str], AbstractContextManager[str]],
) -> list[dict[str, float]]:
    """Seconds of both sides, *runs* times, on a host that is brought up for it and taken down."""
    kit("lab", "up", "--profile", "strix-halo-clean", "--engine", "vllm")
    try:
        inventory = kit("lab", "inventory").strip()
        kit("site.yml", "-i", inventory, "-t", "lemonade_server", "-e", "vllm_rocm_installer=lemond")
        copy_code(lock)
        machine = kit("lab", "exec", "lab1", "--", "printenv", "SSH_CLIENT").split()[0]  # as the host sees it
        found = []
        with served(depot, machine) as url:
            for _ in range(runs):
                theirs = on_host(LEMOND)
                assert theirs["version"].strip() == release.tag, theirs
                ours = on_host(OURS.replace("@URL@", url))
                found.append({"lemond": theirs["seconds"], "ours": ours["seconds"]})
        return found
    finally:
        kit("lab", "down")
