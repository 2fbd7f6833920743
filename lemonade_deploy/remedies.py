# SPDX-License-Identifier: Apache-2.0
"""What to do about failures that are not ours: the connection, sudo, Python on the host.

Only a hint beside Ansible's own message; nothing is decided by these texts.
"""

from __future__ import annotations

import re

_REMEDIES = (
    (
        r"host key verification failed|host key is unknown|authenticity of host|REMOTE HOST IDENTIFICATION",
        "Compare the host's key by another way and add it to known_hosts (log in once with ssh); "
        "host keys are always checked.",
    ),
    (r"permission denied \(", "Check the user and key (ansible_user, ssh-add), or give -k for a password."),
    (
        r"missing sudo password|sudo: a password is required|incorrect sudo password",
        "Give -K and the sudo password.",
    ),
    (r"could not resolve hostname|name or service not known", "Check ansible_host in the inventory, or DNS."),
    (
        r"connection refused|no route to host|timed out",
        "Check that the host is up and that sshd listens on the address and port in the inventory.",
    ),
    (
        r"no python interpreters found|/usr/bin/python3: (not found|no such file)",
        "Install python3 (3.10+) on the host.",
    ),
    (r"to use the 'ssh' connection type with passwords.*sshpass", "Install sshpass here, or use a key."),
    (r"no space left on device", "Free space on the file system that the message names."),
)


def remedy_for(message: str) -> str:
    """The hint for *message*, or an empty string."""
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, message, re.IGNORECASE | re.DOTALL):
            return remedy
    return ""
