# SPDX-License-Identifier: Apache-2.0
"""The one JSON document of every verb (schemas: lemonade_deploy/schema/)."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lemonade_deploy.errors import UsageError
from lemonade_deploy.secrets_in_argv import redact


class Envelope:
    """Starts the clock when made; :meth:`document` closes it.

    ``argv`` is the command line without the program's name; secrets in it are redacted.
    """

    def __init__(self, verb: str, argv: Sequence[str]) -> None:
        self.verb = verb
        self.command = shlex.join(["lemonade-deploy", *redact(argv)])
        self.started = datetime.now(UTC)
        self._clock = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start, to the millisecond."""
        return round(time.monotonic() - self._clock, 3)

    def document(
        self,
        exit_code: int,
        hosts: Mapping[str, Mapping[str, Any]],
        error: UsageError | None = None,
        **extra: Any,
    ) -> dict[str, Any]:
        """The document. ``error`` is there only where the run as a whole could not start."""
        document: dict[str, Any] = {
            "schema": f"lemonade-deploy/{self.verb}/1",
            "command": self.command,
            "exit_code": int(exit_code),
            "started": self.started.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "seconds": self.seconds,
            "hosts": {name: dict(host) for name, host in hosts.items()},
            **extra,
        }
        if error is not None:
            document["error"] = {"message": error.found, "remedy": error.remedy}
        return document


def write(document: Mapping[str, Any]) -> None:
    """Print *document* on standard output, the only thing that ``--json`` puts there."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()
