# SPDX-License-Identifier: Apache-2.0
"""A lemond that somebody built: whether our unit can run it. Said before anything is changed."""

from __future__ import annotations

import os

from .host import Host
from .module import Refused

# What the unit's ProtectHome and PrivateTmp hide.
HIDDEN = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108  compared with
_NOBODY = "65534"  # whoever it is run as must get at it; the service's user may not be there yet
_TIMEOUT = 20  # s


def check(host: Host, binary: str) -> str:
    """The words of its ``--version``. Raises Refused where the service could not run it."""
    remedy = "Build it, and copy it with its folder `resources` below /opt or /usr/local."
    if not binary.startswith("/") or binary != os.path.normpath(binary):
        raise Refused(f"lemonade_server_binary {binary} is no absolute path on the host.", remedy)
    real = os.path.realpath(host.path(binary))
    for path in (binary, host.unroot(real)):
        if path.startswith(HIDDEN):
            raise Refused(
                f"lemonade_server_binary {path} stands where the hardened unit sees nothing.", remedy
            )
    if not os.path.isfile(real):
        raise Refused(f"There is no file {binary} on the host (lemonade_server_binary).", remedy)
    if not os.stat(real).st_mode & 0o001:
        raise Refused(f"{binary} is not executable for the service's user.", f"`chmod 755 {binary}`.")
    as_nobody = ["setpriv", "--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups"]
    done = host.run(
        [*as_nobody, binary, "--version"], check=False, env={"HOME": "/nonexistent"}, timeout=_TIMEOUT
    )
    said = done.stdout.strip().splitlines()
    if done.rc != 0 or not said or "lemond" not in said[0]:
        words = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()[-1]
        raise Refused(
            f"{binary} --version, run as nobody, ends with code {done.rc}: {words[:200]}",
            "Missing libraries are named by `ldd`; every folder above it must be open to all.",
        )
    return said[0]
