# SPDX-License-Identifier: Apache-2.0
"""A server's certificate and key, or what is wrong with the files."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from lemonade_deploy.errors import UsageError

_ENCRYPTED = re.compile(rb"BEGIN ENCRYPTED PRIVATE KEY|Proc-Type: 4,ENCRYPTED")
_PEM = "`openssl x509 -in FILE -noout -subject` shows a certificate, `openssl pkey -in FILE -noout` a key."


def context(certificate: Path, key: Path) -> ssl.SSLContext:
    """What a server speaks TLS with. Both are PEM files. Raises UsageError, OSError."""
    for path, option, mark in (
        (certificate, "--tls-cert", b"-----BEGIN CERTIFICATE-----"),
        (key, "--tls-key", b"PRIVATE KEY-----"),
    ):
        content = path.read_bytes()
        if mark not in content:
            kind = "certificate" if option == "--tls-cert" else "private key"
            raise UsageError(f"{path} ({option}) holds no {kind} in PEM form.", _PEM)
        if option == "--tls-key" and _ENCRYPTED.search(content):
            raise UsageError(
                f"{path} (--tls-key) is protected by a passphrase, and nobody is there to type it.",
                "Give a key without one, in a file that only this user can read: "
                "openssl pkey -in OLD -out NEW",
            )
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        made.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"{key} (--tls-key) is not the key of the certificate {certificate} (--tls-cert).",
                "Give the two that were made together.",
            ) from error
        raise UsageError(
            f"{certificate} (--tls-cert) and {key} (--tls-key) cannot be used: {error.reason or error}.", _PEM
        ) from error
    return made
