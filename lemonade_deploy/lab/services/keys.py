# SPDX-License-Identifier: Apache-2.0
"""OpenPGP keys that the lab makes and signs its repositories with.

Secret keys lie armored below the cache folder (0600); each use imports them into a GNUPGHOME of
its own with a short path, since gpg-agent's socket fits no long one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..shell import run

# role -> user id. AMD's also exists in an older, expired form: keys in the field do expire, and
# the same key is then published again with a later date.
OWNERS = {
    "amd": "AMD driver repository (simulated by lemonade-deploy's lab) <amd@lab.invalid>",
    "ppa": "Launchpad PPA for Lemonade (simulated by lemonade-deploy's lab) <ppa@lab.invalid>",
    "archive": "Ubuntu archive (simulated by lemonade-deploy's lab) <archive@lab.invalid>",
    "mainline": "Ubuntu mainline builds (simulated by lemonade-deploy's lab) <mainline@lab.invalid>",
}
_MADE_AT, _RENEWED_AT = "20250101T000000", "20250601T000000"
_FIRST_EXPIRY, _NEW_EXPIRY = "2025-12-31", "2040-01-01"


@dataclass(frozen=True)
class Key:
    """One signing key: fingerprint and files (armored, dearmored, secret)."""

    role: str
    fingerprint: str
    armored: Path
    binary: Path
    secret: Path


def ensure_keys(folder: Path) -> dict[str, Key]:
    """The lab's keys by role; made once, then kept, so that fingerprints stay the same.

    Besides :data:`OWNERS` there is ``amd-expired``: the key ``amd`` as it was first published.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    keys = {}
    for role in OWNERS:
        if not (folder / f"{role}.fingerprint").exists():
            _make(role, folder)
        keys[role] = _load(role, folder)
    expired = _load("amd-expired", folder)
    return {**keys, "amd-expired": expired}


@contextmanager
def gpg_home(*secrets: Path) -> Iterator[list[str]]:
    """A private GNUPGHOME with *secrets* imported; yields the start of a gpg command line."""
    home = Path(tempfile.mkdtemp(prefix="lab-gpg-", dir="/tmp"))
    gpg = [
        "gpg",
        "--homedir",
        str(home),
        "--batch",
        "--yes",
        "--quiet",
        "--no-tty",
        "--pinentry-mode",
        "loopback",
    ]
    try:
        for secret in secrets:
            run([*gpg, "--passphrase", "", "--import", secret])
        yield gpg
    finally:
        run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)
        shutil.rmtree(home, ignore_errors=True)


def sign_release(release: Path, key: Key) -> None:
    """Write InRelease and Release.gpg beside *release*."""
    with gpg_home(key.secret) as gpg:
        base = [*gpg, "--passphrase", "", "--digest-algo", "SHA512", "--local-user", key.fingerprint]
        run([*base, "--clearsign", "--output", release.with_name("InRelease"), release])
        run([*base, "--armor", "--detach-sign", "--output", release.with_name("Release.gpg"), release])


def _make(role: str, folder: Path) -> None:
    with gpg_home() as gpg:
        made = [*gpg, "--faked-system-time", f"{_MADE_AT}!", "--passphrase", ""]
        run([*made, "--quick-generate-key", OWNERS[role], "rsa3072", "sign,cert", _FIRST_EXPIRY])
        fingerprint = _fingerprint(gpg)
        if role == "amd":
            _export(gpg, fingerprint, folder / "amd-expired")
        # While it was still valid: an expired key does not sign its own longer life.
        renewed = [*gpg, "--faked-system-time", f"{_RENEWED_AT}!", "--passphrase", ""]
        run([*renewed, "--quick-set-expire", fingerprint, _NEW_EXPIRY])
        secret = run([*gpg, "--passphrase", "", "--armor", "--export-secret-keys", fingerprint]).stdout
        secret_file = folder / f"{role}.secret.asc"
        secret_file.touch(mode=0o600)
        secret_file.write_text(secret, "utf-8")
        _export(gpg, fingerprint, folder / role)


def _export(gpg: list[str], fingerprint: str, base: Path) -> None:
    run([*gpg, "--armor", "--output", base.with_suffix(".asc"), "--export", fingerprint])
    run([*gpg, "--output", base.with_suffix(".gpg"), "--export", fingerprint])
    base.with_suffix(".fingerprint").write_text(fingerprint + "\n", "utf-8")


def _fingerprint(gpg: list[str]) -> str:
    listing = run([*gpg, "--with-colons", "--list-keys"]).stdout
    return next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))


def _load(role: str, folder: Path) -> Key:
    return Key(
        role=role,
        fingerprint=(folder / f"{role}.fingerprint").read_text("utf-8").strip(),
        armored=folder / f"{role}.asc",
        binary=folder / f"{role}.gpg",
        secret=folder / f"{role.removesuffix('-expired')}.secret.asc",
    )
