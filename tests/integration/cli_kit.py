# SPDX-License-Identifier: Apache-2.0
"""Small playbooks for the command on this machine (local connections, a temporary folder).

A module beside the playbook returns what it is given, in the keys of our own modules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml

import lemonade_deploy

from .kit import Ran

SCHEMAS = Path(lemonade_deploy.__file__).parent / "schema"

TOLD = '''#!/usr/bin/python3
"""Returns its argument `result`, also in check mode."""
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"result": {"type": "dict", "required": True}}, supports_check_mode=True)
result = module.params["result"]
if result.pop("failed", False):
    module.fail_json(**result)
module.exit_json(**result)
'''
HOSTS = {"all": {"hosts": {name: {"ansible_connection": "local"} for name in ("a", "b")}}}
CHANGES = [
    {"layer": "kernel", "object": "linux-generic-hwe-24.04", "action": "install", "detail": "7.0.0-31"},
    {"layer": "kernel", "object": "boot entry", "action": "try once", "detail": ""},
]
GPU = {
    "node": 1,
    "gfx": "gfx1151",
    "cu_count": 40,
    "driver": "in-tree",
    "cwsr_size": 19185664,
    "ctl_stack_size": 16384,
    "expected_cwsr_size": 19185664,
    "expected_ctl_stack_size": 16384,
    "cwsr": "ok",
}
INFERENCE = {
    "model": "user.SmolLM2-135M",
    "content": "The answer is 4.",
    "finish_reason": "stop",
    "prompt_tokens": 37,
    "completion_tokens": 12,
    "seconds": 0.7,
    "tokens_per_second": 17.1,
}


def prepare(folder: Path) -> Path:
    """*folder* with the module, an inventory, and a TMPDIR of its own."""
    for name in ("library", "tmp"):
        (folder / name).mkdir()
    (folder / "library" / "told.py").write_text(TOLD)
    (folder / "hosts.yml").write_text(yaml.safe_dump(HOSTS))
    return folder


def environment(folder: Path) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    return {**clean, "TMPDIR": str(folder / "tmp"), "COLUMNS": "200"}


def command(folder: Path, *argv: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-m", "lemonade_deploy", *argv],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(folder),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr + done.stdout
    assert list((folder / "tmp").glob("lemonade-deploy-*")) == [], "the private folder is still there"
    return Ran(done.returncode, done.stdout, done.stderr)


def play(folder: Path, *tasks: dict[str, Any], **more: Any) -> str:
    """Write play.yml with *tasks*; its name."""
    document = [{"hosts": "all", "gather_facts": False, "tasks": list(tasks), **more}]
    (folder / "play.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    return "play.yml"


def told(name: str = "tell", when: str | None = None, **result: Any) -> dict[str, Any]:
    task: dict[str, Any] = {"name": name, "told": {"result": result}}
    return {**task, **({"when": when} if when else {})}


def document(ran: Ran, schema: str = "run") -> dict[str, Any]:
    """The JSON document, valid by its schema; one, and nothing else, on stdout."""
    found: dict[str, Any] = json.loads(ran.stdout)
    jsonschema.validate(found, json.loads((SCHEMAS / f"{schema}.json").read_text()))
    assert found["exit_code"] == ran.rc
    return found


def everything() -> list[dict[str, Any]]:
    facts = {"gpu": [{**GPU, "cwsr": "missing", "driver": "dkms"}], "kernel_running": "6.14.0-37-generic"}
    decision = {"reasons": ["the in-tree driver is right for an APU"]}
    told_facts = {"lemonade_deploy": {"facts": facts, "decision": decision, "findings": []}}
    return [
        told("look", changed=False, ansible_facts=told_facts),
        told("kernel", changed=True, changes=CHANGES),
        told(
            "boot",
            changed=True,
            changes=[],
            rebooted=True,
            kernel="7.0.0-31-generic",
            gpu=[{**GPU, "pci": "x"}],
            bundle={"tag": "vllm1-gfx1151", "path": "/opt/x", "digest": "sha256:1"},
            endpoint="http://127.0.0.1:13305/api/v1",
            load_seconds=61.5,
        ),
        told("ask", changed=False, changes=[], inference=INFERENCE),
    ]
