# SPDX-License-Identifier: Apache-2.0
"""One file from a repository, fetched by apt's own helper: its proxies, logins, certificates and mirrors."""

from __future__ import annotations

import os
import re
import shutil
import tempfile

from . import apt_plan
from .host import CommandFailed, Host

HELPER = "/usr/lib/apt/apt-helper"
_TIMEOUT = 90  # s
_OPTIONS = (
    # The file goes into a folder of root's own; apt would only warn that _apt cannot write there.
    *("-o", "APT::Sandbox::User=root"),
    *("-o", "Acquire::Retries=1"),
    *("-o", "Acquire::http::Timeout=30"),
    *("-o", "Acquire::https::Timeout=30"),
)
# Words of apt's methods (http, gnutls/openssl), each with what to do about it.
_KINDS = (
    (
        r"\b404\b|Not Found|does not have a Release|no longer has a Release",
        "there is no such version or suite: see https://repo.radeon.com/amdgpu/ for what there is "
        "(amdgpu_driver_repo_version)",
    ),
    (
        r"certificate|handshake|\bTLS\b|\bSSL\b|gnutls",
        "the server's certificate is not trusted: check the host's clock, its ca-certificates, "
        "and any proxy that opens TLS",
    ),
    (
        r"EXPKEYSIG|expired|NO_PUBKEY|not signed|signatures",
        "the repository's key is not the one that the host trusts: compare it with "
        "amdgpu_driver_repo_key_fingerprint",
    ),
    (r"\b40[137]\b", "the server or a proxy wants a login (apt_auth.conf(5), Acquire::http::Proxy)"),
    (r"\b5\d\d  ", "the server is in trouble: try again later, or use a mirror"),
    (
        r"resolve|connect|timed out|timeout|unreachable|refused|No route",
        "the host has no way to that server: check its network and apt's proxy (Acquire::https::Proxy), "
        "or name a mirror in the source (only the version of the path is the kit's)",
    ),
)


class Unfetchable(OSError):
    """apt could not fetch a file; the message holds apt's own words."""


def advice(text: str) -> str:
    """What to do about apt's words for a failed fetch; "" where they say nothing known."""
    words = re.sub(r"\S+://\S+", "", text)  # an address may hold anything
    return next((what for pattern, what in _KINDS if re.search(pattern, words, re.IGNORECASE)), "")


def fetch(host: Host, uri: str, limit: int = 1_000_000) -> bytes:
    """At most *limit* bytes of *uri*. Writes below /tmp only. Raises Unfetchable."""
    above = host.path("/tmp")  # noqa: S108  the folder itself is made by mkdtemp
    os.makedirs(above, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="lemonade-deploy-apt-", dir=above)
    try:
        target = os.path.join(folder, "file")
        done = host.run(
            (HELPER, *_OPTIONS, "download-file", uri, host.unroot(target)), check=False, timeout=_TIMEOUT
        )
        if done.rc != 0:
            told = [
                line[len("E: ") :] for line in apt_plan.errors(done.stderr) if "Download Failed" not in line
            ]
            raise Unfetchable("; ".join(told) or str(CommandFailed(done)))
        try:
            with open(target, "rb") as stream:
                return stream.read(limit)
        except FileNotFoundError as error:
            raise Unfetchable(f"{HELPER} brought nothing of {uri}") from error
    finally:
        shutil.rmtree(folder)
