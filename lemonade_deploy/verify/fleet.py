# SPDX-License-Identifier: Apache-2.0
"""The suite on many hosts: one worker process each, a few at a time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lemonade_deploy.errors import UsageError
from lemonade_deploy.prepare import Prepared
from lemonade_deploy.stopping import Stopped
from lemonade_deploy.verify import steps
from lemonade_deploy.verify.progress import Progress
from lemonade_deploy.verify.verdict import TestResult, Verdict

# Connections that testinfra speaks itself; all others, and passwords, need Ansible for every command.
_NATIVE = ("ssh", "smart", "local", "paramiko_ssh")
_SECRETS = ("ansible_become_password", "ansible_become_pass", "ansible_password", "ansible_ssh_pass")

# What an inventory says about the way to a host.
_TELLS = (
    "ansible_host",
    "ansible_user",
    "ansible_port",
    "ansible_connection",
    "ansible_become",
    "ansible_ssh",
    "ansible_private_key_file",
    "ansible_password",
)


NOT_DONE = "not done, as tests before it failed"


@dataclass(frozen=True)
class Access:
    """How the hosts are reached: Ansible's environment, and passwords that were asked for (0600 files)."""

    environment: dict[str, str]
    passwords: bool = False
    hostvars: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def needs_ansible(self, host: str) -> bool:
        """Whether testinfra's own ssh would not get in, or not as the inventory says."""
        told = {k: v for k, v in self.hostvars.get(host, {}).items() if k.startswith(_TELLS)}
        templated = any("{{" in str(value) or isinstance(value, dict) for value in told.values())
        foreign = told.get("ansible_connection", "ssh") not in _NATIVE
        other_sudo = told.get("ansible_become_method", "sudo") != "sudo"
        return self.passwords or templated or foreign or other_sudo or any(key in told for key in _SECRETS)

    def already_root(self, host: str) -> bool:
        """Whether no sudo is needed, and it may not even be installed (Ansible skips it then, too)."""
        told = self.hostvars.get(host, {})
        if told.get("ansible_connection") == "local":
            return os.geteuid() == 0
        return told.get("ansible_user") == "root"


def as_files(sources: Sequence[str], private: Path) -> list[str]:
    """*sources* with lists of hosts (``a,b,``) put into files: the variable splits at every comma."""
    named: list[str] = []
    for number, source in enumerate(sources):
        if "," in source:
            path = private / f"hosts-{number}.yml"
            hosts = {name.strip(): None for name in source.split(",") if name.strip()}
            path.write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
            source = str(path)
        named.append(source)
    return named


def access(prepared: Prepared, private: Path, ssh: str | None, become: str | None) -> Access:
    """Ansible's environment for the workers. Raises UsageError where the inventory cannot be listed."""
    environment = {**os.environ, **prepared.environment}
    environment["ANSIBLE_INVENTORY"] = ",".join(as_files(prepared.selection.sources, private))
    identities = [*prepared.vault.ids, *(f"default@{path}" for path in prepared.vault.password_files)]
    if identities:
        environment["ANSIBLE_VAULT_IDENTITY_LIST"] = ",".join(identities)
    for name, password in (("CONNECTION", ssh), ("BECOME", become)):
        if password is not None:
            path = private / f"{name.lower()}-password"
            path.touch(mode=0o600)
            path.write_text(password + "\n", encoding="utf-8")
            environment[f"ANSIBLE_{name}_PASSWORD_FILE"] = str(path)
    done = subprocess.run(
        ["ansible-inventory", "--list"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=prepared.request.folder,
        check=False,
    )
    if done.returncode != 0:
        raise UsageError(f"the inventory cannot be listed: {done.stderr.strip()[-600:]}")
    hostvars = json.loads(done.stdout).get("_meta", {}).get("hostvars", {})
    return Access(environment, ssh is not None or become is not None, hostvars)


def run(
    hosts: Sequence[str],
    reach: Access,
    folder: Path,
    forks: int,
    progress: Progress,
    disruptive: bool = False,
) -> list[Verdict]:
    """The verdicts in the order of *hosts*. ``forks`` hosts are asked at a time.

    With *disruptive* each is restarted, then rebooted, and asked again after each; a host with a failure
    is not disturbed any further.
    """
    workers: list[subprocess.Popen[str]] = []

    def one(host: str) -> Verdict:
        asking = _Asking(host, reach, folder, progress, workers)
        verdict = asking.all(disruptive)
        progress.finished(host)
        return verdict

    with ThreadPoolExecutor(max_workers=max(1, forks)) as pool:
        try:
            return list(pool.map(one, hosts))
        except Stopped:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.terminate()
            raise


class _Asking:
    """One host's verdict, from one worker process after the other."""

    def __init__(
        self, host: str, reach: Access, folder: Path, progress: Progress, workers: list[subprocess.Popen[str]]
    ) -> None:
        self._host = host
        self._reach = reach
        self._folder = folder
        self._progress = progress
        self._workers = workers
        self._verdict = Verdict(host)
        self._counted = 0  # tests that the worker has announced

    def all(self, disruptive: bool) -> Verdict:
        """The suite; with *disruptive* also what follows it."""
        began, verdict = time.monotonic(), self._verdict
        self._worker("", "")
        for step in (steps.RESTART, steps.REBOOT) if disruptive else ():
            if verdict.absent or verdict.unreachable:
                break
            if verdict.status != "ok":
                verdict.tests.append(
                    TestResult(
                        f"disruptive::{step}", "skipped", 0.0, NOT_DONE, properties={"warning": NOT_DONE}
                    )
                )
                continue
            self._worker(step, step)
            if verdict.status == "ok":
                self._worker("", f"after_{step}")
        verdict.seconds = time.monotonic() - began
        return verdict

    def _worker(self, step: str, phase: str) -> None:
        """One process: the suite, or a *step*. Names of the suite's tests get *phase* in front."""
        before, self._counted = len(self._verdict.tests), 0
        self._progress.begin(self._host, phase.replace("_", " "))
        environment = dict(self._reach.environment)
        if not self._reach.already_root(self._host):
            environment["ANSIBLE_BECOME"] = "True"
        with subprocess.Popen(
            [sys.executable, "-m", "lemonade_deploy.verify.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self._folder,
        ) as worker:
            self._workers.append(worker)
            assert worker.stdin and worker.stdout and worker.stderr
            with contextlib.suppress(BrokenPipeError):  # it has died already; what it said is read below
                worker.stdin.write(json.dumps(self._request(step)))
                worker.stdin.close()
            with ThreadPoolExecutor(max_workers=1) as reader:
                said = reader.submit(worker.stderr.read)
                for line in worker.stdout:
                    self._take(_record(line), "" if step else phase)
                words = said.result().strip()[-800:] or "it said nothing"
        self._judge_end(len(self._verdict.tests) - before, words)

    def _judge_end(self, told: int, words: str) -> None:
        """A worker that died must not leave a host that passed: of its tests only *told* have a result."""
        verdict = self._verdict
        if verdict.unreachable or verdict.absent or told >= max(1, self._counted):
            return
        if told:
            words = f"ended after {told} of {self._counted} tests: {words}"
        verdict.tests.append(TestResult("worker", "error", 0.0, words))

    def _request(self, step: str) -> dict[str, Any]:
        told = self._reach.hostvars.get(self._host, {})
        release = told.get("vllm_rocm_release")
        return {
            "host": self._host,
            "force_ansible": self._reach.needs_ansible(self._host),
            "step": step,
            "local": told.get("ansible_connection") == "local",
            # A template is Ansible's to read; what it comes to is not known here.
            "release": release if isinstance(release, str) and "{{" not in release else "",
        }

    def _take(self, record: dict[str, Any], phase: str) -> None:
        if "count" in record:
            self._counted = record["count"]
            self._progress.counted(self._host, record["count"])
        elif "running" in record:
            self._progress.running(self._host, record["running"])
        elif "unreachable" in record:
            self._verdict.unreachable = record["unreachable"]
        elif "absent" in record:
            self._verdict.absent = record["absent"]
        elif record:
            name = f"{phase}::{record['name']}" if phase else record["name"]
            result = TestResult(**{**record, "name": name})
            self._verdict.tests.append(result)
            self._progress.ended(self._host, result)


def _record(line: str) -> dict[str, Any]:
    """A line of a worker; {} for one that was cut off when it died."""
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return record
