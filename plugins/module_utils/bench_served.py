# SPDX-License-Identifier: Apache-2.0
"""The burn test where vLLM itself is the daemon: systemd and vLLM answer what is asked of lemond."""

from __future__ import annotations

import shlex
import time
from typing import Any

from . import daemon, paths, vllm_arguments, vllm_service
from .host import CommandFailed, Host
from .lemond_api import Answer, Lemond
from .refusal import Refused

NO_LEMOND = "none: vLLM itself is the daemon"


class Served(Lemond):
    """vLLM behind the part of lemond's interface that the burn test uses. A load is a start."""

    unit = vllm_service.UNIT

    def __init__(self, host: Host, api_key: str = "") -> None:
        super().__init__(daemon.endpoint(host), api_key)
        self._host = host
        self._unit = host.read(paths.VLLM_UNIT) or ""
        self._name = daemon.served_name(host)

    def alive(self) -> bool:
        """Whether the model answers."""
        return vllm_service.healthy(self.endpoint)

    def model_names(self) -> list[str]:
        """The only one."""
        return [self._name]

    def model(self, name: str) -> dict[str, Any] | None:
        """The served model by either form of its name, None for any other."""
        if name.removeprefix(daemon.USER_PREFIX) != self._name.removeprefix(daemon.USER_PREFIX):
            return None
        own = self._name.startswith(daemon.USER_PREFIX)
        return {
            "id": self._name,
            "model_name": self._name,
            "checkpoint": vllm_arguments.option(self._unit, "--model"),
            "recipe": "vllm",
            "labels": ["custom"] if own else [],
            "downloaded": True,
            "launch_command": self._command(),
        }

    def loaded(self, name: str) -> dict[str, Any] | None:
        """The same while it answers."""
        return self.model(name) if self.alive() else None

    def call(self, method: str, path: str, body: Any = None, timeout: float = 30) -> Answer:
        """lemond's paths that the burn test knows; all others go to vLLM."""
        began = time.monotonic()
        entry = self.model(self._name)
        if path == "/v1/health":
            told: dict[str, Any] = {
                "all_models_loaded": [entry] if self.alive() else [],
                "version": NO_LEMOND,
            }
        elif path == "/v1/models":
            told = {"data": [entry]}
        elif path in ("/v1/unload", "/v1/load"):
            return self._service(path == "/v1/load", timeout, began)
        else:
            return super().call(method, path, body, timeout)
        return Answer(200, told, time.monotonic() - began)

    def _service(self, start: bool, timeout: float, began: float) -> Answer:
        try:
            if start:
                since = time.time()
                self._host.run(["systemctl", "reset-failed", self.unit], check=False)
                self._host.run(["systemctl", "start", self.unit], timeout=timeout)
                vllm_service.await_ready(self._host, self.endpoint, timeout, since)
            else:
                self._host.run(["systemctl", "stop", self.unit], timeout=timeout)
        except (Refused, CommandFailed) as error:
            return Answer(500, {"error": str(error)}, time.monotonic() - began)
        return Answer(200, {"status": "success"}, time.monotonic() - began)

    def _command(self) -> list[str]:
        line = next((line for line in self._unit.splitlines() if line.startswith("ExecStart=")), "")
        return shlex.split(line.removeprefix("ExecStart=").replace("%%", "%").replace("$$", "$"))
