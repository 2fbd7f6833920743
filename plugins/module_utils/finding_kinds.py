# SPDX-License-Identifier: Apache-2.0
"""What a kind of finding is; the kinds there are stand in finding_kinds_driver and finding_kinds_host.

Ids are stable. docs/findings.md is both tables for people; a test keeps them equal.
"""

from __future__ import annotations

from typing import NamedTuple

ERROR = "error"
WARNING = "warning"
INFO = "info"


class Kind(NamedTuple):
    """One kind of finding. ``severity`` is its usual one. ``stops``: preflight does not go on with it."""

    id: str
    severity: str
    meaning: str
    remedy: str
    stops: bool = False


PLAY = "Run `lemonade-deploy site.yml` on this host"
