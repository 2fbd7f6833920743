# SPDX-License-Identifier: Apache-2.0
"""The key that clients of the endpoint must send: given, or made on the host and kept there."""

from __future__ import annotations

import secrets

from . import lemond_config
from .host import Host

NAME = "LEMONADE_API_KEY"
_BYTES = 32  # of randomness


def api_key(host: Host, given: str, generate: bool) -> str:
    """The key that counts: *given*, else with *generate* the host's own or a new one, else "".

    A new one is only in this process's memory until the plan writes it into the file that root alone
    can read; it is in no result and no diff. Removed from there, the next run makes another.
    """
    if given or not generate:
        return given
    return lemond_config.read_secret(host, NAME) or secrets.token_urlsafe(_BYTES)
