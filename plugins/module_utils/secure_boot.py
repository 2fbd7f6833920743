# SPDX-License-Identifier: Apache-2.0
"""Secure Boot's state, and whether a kernel module on disk carries a signature."""

from __future__ import annotations

from .host import Host

EFIVAR = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def enabled(host: Host) -> bool:
    """Whether the firmware refuses unsigned kernels: four bytes of attributes, then 1 or 0."""
    data = host.read_bytes(EFIVAR)
    return data is not None and len(data) >= 5 and data[4] == 1


def module_signer(host: Host, path: str) -> str | None:
    """Who signed a kernel module (compressed or not), or None where nobody did."""
    done = host.run(("modinfo", "-F", "signer", path), check=False, timeout=60)
    return done.stdout.strip() or None if done.rc == 0 else None
