# SPDX-License-Identifier: Apache-2.0
"""Sign an unsigned kernel image with the owner's own key, where Secure Boot asks for one.

The kit makes and enrols no key: that needs the owner at the machine's firmware. It uses what is set up
as the usual guides do: MOK-Kernel.priv and MOK-Kernel.pem in shim's folder, enrolled with mokutil.
(The key that Ubuntu makes there by itself, MOK.priv, is for modules only: shim refuses a kernel signed
with it.) Not tried on a box with Secure Boot.
"""

from __future__ import annotations

import os
import ssl

from .host import Host

FOLDER = "/var/lib/shim-signed/mok"
KEY, CERTIFICATE = f"{FOLDER}/MOK-Kernel.priv", f"{FOLDER}/MOK-Kernel.pem"
SBSIGN = "/usr/bin/sbsign"
# The list of enrolled owner keys as shim hands it on; it holds each certificate as it is (DER).
ENROLLED = "/sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"


def lacks(host: Host) -> str:
    """What is missing for signing a kernel on this host; empty where all is set up."""
    missing = [path for path in (KEY, CERTIFICATE) if not host.read_bytes(path)]
    if not host.exists(SBSIGN):
        missing.append("sbsign (package sbsigntool)")
    if missing:
        return f"missing: {', '.join(missing)}"
    try:
        certificate = ssl.PEM_cert_to_DER_cert((host.read(CERTIFICATE) or "").strip())
    except ValueError:
        return f"{CERTIFICATE} is no certificate in PEM form"
    if certificate not in (host.read_bytes(ENROLLED) or b""):
        return f"{CERTIFICATE} is not enrolled (mokutil --import, then confirm at the next boot)"
    return ""


def sign(host: Host, release: str) -> None:
    """Replace a kernel's image by its signed form. Raises CommandFailed, OSError."""
    image = f"/boot/vmlinuz-{release}"
    # No name that GRUB's 10_linux would take for a kernel (vmlinuz-*): a pulled plug leaves it behind.
    new = f"/boot/.lemonade-deploy-{release}"
    try:
        host.run(["sbsign", "--key", KEY, "--cert", CERTIFICATE, "--output", new, image], timeout=120)
        with open(host.path(new), "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(host.path(new), host.path(image))
    finally:
        if host.exists(new):
            os.unlink(host.path(new))


def signed(host: Host, release: str) -> bool:
    """Whether a kernel's image carries a signature, whosever: its certificate table is not empty.

    https://learn.microsoft.com/windows/win32/debug/pe-format: data directory 4 (address, then size).
    """
    data = host.read_bytes(f"/boot/vmlinuz-{release}") or b""
    header = int.from_bytes(data[0x3C:0x40], "little")
    if data[:2] != b"MZ" or data[header : header + 4] != b"PE\0\0":
        return False
    optional = header + 24
    wide = data[optional : optional + 2] == b"\x0b\x02"  # 64 bits
    entry = optional + (112 if wide else 96) + 4 * 8
    return any(data[entry + 4 : entry + 8])
