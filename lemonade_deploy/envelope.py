# SPDX-License-Identifier: Apache-2.0
"""The one JSON document of every verb (schemas: lemonade_deploy/schema/)."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lemonade_deploy import specs
from lemonade_deploy.errors import UsageError
from lemonade_deploy.secrets_in_argv import redact, redact_text
from lemonade_deploy.stopping import held

# What stands for a byte that is no text: argv and file names may hold any.
_NO_TEXT = re.compile("[\ud800-\udfff]")

# Exit codes of the documents that were written: one at most.
written: list[int] = []


class Envelope:
    """Starts the clock when made; :meth:`document` closes it.

    ``argv`` is the command line without the program's name; secrets in it are redacted.
    """

    def __init__(self, verb: str, argv: Sequence[str]) -> None:
        self.verb = verb
        self._argv = list(argv)
        # The kit's specs name secrets that do not sound like one.
        self._secrets = (
            specs.load().secret_names() if any("=" in word or ":" in word for word in argv) else []
        )
        self.command = shlex.join(["lemonade-deploy", *redact(argv, self._secrets)])
        self.started = datetime.now(UTC)
        self._clock = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start, to the millisecond."""
        return round(time.monotonic() - self._clock, 3)

    def redacted(self, text: str) -> str:
        """*text* without the secrets of the command line that it may quote."""
        return redact_text(text, self._argv, self._secrets)

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
            document["error"] = {
                "message": self.redacted(error.found),
                "remedy": self.redacted(error.remedy),
            }
        return document


def write(document: Mapping[str, Any]) -> None:
    """Print *document* on standard output, the only thing that ``--json`` puts there.

    Valid JSON whatever the values are and whatever the locale: what is no text becomes U+FFFD, what
    is no number null.
    """
    unicode = (sys.stdout.encoding or "ascii").lower().replace("-", "") == "utf8"
    text = json.dumps(_clean(document), indent=2, ensure_ascii=not unicode, allow_nan=False)
    with held():  # a document by halves is none, and a second one would follow it
        written.append(int(document.get("exit_code", 0)))
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _NO_TEXT.sub("\ufffd", value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {_clean(str(key)): _clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    return value
