# SPDX-License-Identifier: Apache-2.0
"""Whether a file is signed by one certain key, judged by the host's own verifier.

gpgv, gpg or sqv, whichever is there: apt needs one of them, so a Debian or Ubuntu host has one. Each
works on a keyring of its own that holds nothing but the wanted key, and leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import openpgp
from .host import Completed, Host

_TIMEOUT = 60  # s
GOOD = ""


def normal(fingerprint: str) -> str:
    """A fingerprint as the tools print it: no blanks, no 0x, upper case."""
    return "".join(fingerprint.split()).upper().removeprefix("0X")


@contextmanager
def scratch(host: Host, kind: str) -> Iterator[str]:
    """A folder for root alone below the host's /tmp, removed at the end; its path on the host."""
    temporary = host.path("/tmp")  # noqa: S108  the folder itself is made by mkdtemp
    os.makedirs(temporary, exist_ok=True)
    real = tempfile.mkdtemp(prefix=f"lemonade-deploy-{kind}-", dir=temporary)
    try:
        yield host.unroot(real)
    finally:
        shutil.rmtree(real)


def why_not(host: Host, data: bytes, signature: bytes, key: bytes, fingerprint: str) -> str:
    """Why *data* does not count as signed by the key; :data:`GOOD` (empty) where it does.

    *signature* is a detached one, *key* a key file that must hold the key with *fingerprint*.
    """
    wanted = normal(fingerprint)
    try:
        there = [item.fingerprint for item in openpgp.read_keys(key)]
        ring = openpgp.only(key, wanted)
    except openpgp.Unreadable as error:
        return f"the key cannot be read: {error}"
    if not ring:
        return f"the key file holds {', '.join(there)}, not {wanted}"
    with scratch(host, "verify") as folder:
        for name, content in (("ring.gpg", ring), ("data", data), ("data.sig", signature)):
            host.write(f"{folder}/{name}", content, 0o600)
        return _judge(host, folder, wanted)


def _judge(host: Host, folder: str, wanted: str) -> str:
    ring, signature, data = f"{folder}/ring.gpg", f"{folder}/data.sig", f"{folder}/data"
    gpg = ("--homedir", folder, "--status-fd", "1", "--keyring", ring)
    private = ("--batch", "--no-default-keyring", "--trust-model", "always", "--no-auto-key-retrieve")
    tools: tuple[tuple[tuple[str, ...], Callable[[Completed, str], bool]], ...] = (
        (("gpgv", *gpg, signature, data), _status_says),
        (("gpg", *private, *gpg, "--verify", signature, data), _status_says),
        (("sqv", "--keyring", ring, signature, data), _sqv_says),
    )
    told = ""
    for argv, says in tools:
        done = host.run(argv, check=False, timeout=_TIMEOUT)
        if done.rc == 127:
            continue
        if says(done, wanted):
            return GOOD
        words = [line for line in done.stderr.splitlines() if line.strip()]
        told = told or f"{argv[0]} says: {'; '.join(words[-3:]) or f'code {done.rc}'}"
    return told or "this host has no gpgv, gpg or sqv (sudo apt-get install gpgv)"


def _status_says(done: Completed, wanted: str) -> bool:
    """GOODSIG excludes expired and revoked keys; the last word of VALIDSIG is the primary key."""
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("[GNUPG:] ")]
    good = any(line[1] == "GOODSIG" for line in lines)
    return done.rc == 0 and good and any(line[1] == "VALIDSIG" and line[-1] == wanted for line in lines)


def _sqv_says(done: Completed, _wanted: str) -> bool:
    """sqv prints the signing key (maybe a subkey) and its code is the verdict; the ring holds one key."""
    return done.rc == 0 and bool(done.stdout.strip())
