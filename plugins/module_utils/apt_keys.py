# SPDX-License-Identifier: Apache-2.0
"""Whether the key that an apt source names can be used: there, readable, the right one, not expired."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .apt_formats import Entry
from .host import Host

if TYPE_CHECKING:
    from . import openpgp

TRUSTED = ("/etc/apt/trusted.gpg", "/etc/apt/trusted.gpg.d")
SOON = 30 * 24 * 3600  # s: an end this near is worth a warning

ANY = ""  # in place of a fingerprint: whatever key the file holds, as long as it has not expired

OK = "ok"
MISSING = "missing"
UNREADABLE = "unreadable"
EXPIRED = "expired"
OTHER = "other-key"
EXPIRES_SOON = "expires-soon"


class KeyState(NamedTuple):
    """The key of one source entry. ``state`` is one of this module's constants.

    ``expires`` in seconds since 1970, None for never or not known.
    """

    path: str
    state: str
    why: str
    fingerprint: str | None = None
    expires: int | None = None

    @property
    def usable(self) -> bool:
        """Whether apt accepts what it signs."""
        return self.state in (OK, EXPIRES_SOON)


def key_paths(host: Host, entry: Entry) -> list[str]:
    """Files that may hold an entry's key: Signed-By, else apt's trusted keys."""
    if entry.signed_by.startswith("/"):
        return [path for path in entry.signed_by.replace(",", " ").split() if path.startswith("/")]
    trusted, folder = TRUSTED
    names = [name for name in host.listdir(folder) if name.endswith((".gpg", ".asc"))]
    return [trusted, *(f"{folder}/{name}" for name in names)]


def _read(host: Host, path: str) -> list[openpgp.Key] | str:
    data = host.read_bytes(path)
    if data is None:
        return "is not there"
    from . import openpgp  # only where there is a key to read: imports are what preflight's time goes into

    try:
        return openpgp.read_keys(data)
    except openpgp.Unreadable as error:
        return f"cannot be read: {error}"


def judge(path: str, keys: list[openpgp.Key], fingerprint: str, now: float) -> KeyState:
    """The state of the key with *fingerprint* (or :data:`ANY`) among *keys* of the file *path*."""
    wanted = fingerprint.replace(" ", "").upper()
    if wanted == ANY:
        # The one that lasts longest: a file may keep the old ones beside it.
        wanted = max(keys, key=lambda key: float("inf") if key.expires is None else key.expires).fingerprint
    key = next((key for key in keys if key.fingerprint == wanted), None)
    if key is None:
        return KeyState(
            path, OTHER, f"holds {keys[0].fingerprint}, not {wanted}", keys[0].fingerprint, keys[0].expires
        )
    if key.expired(now):
        return KeyState(path, EXPIRED, f"the key {wanted} has expired", key.fingerprint, key.expires)
    if key.expired(now + SOON):
        return KeyState(path, EXPIRES_SOON, f"the key {wanted} expires soon", key.fingerprint, key.expires)
    return KeyState(path, OK, "", key.fingerprint, key.expires)


def entry_key(host: Host, entry: Entry, fingerprint: str, now: float) -> KeyState:
    """The state of the key that signs *entry*'s repository; *now* in seconds since 1970.

    A key that stands in the stanza itself, and a fingerprint there, are judged like a file; an entry that
    is trusted as it is (``trusted=yes``) needs none.
    """
    if entry.trusted:
        return KeyState(entry.path, OK, "")
    if "BEGIN PGP" in entry.signed_by:
        from . import openpgp

        text = "\n".join("" if line == "." else line for line in entry.signed_by.splitlines())
        try:
            return judge(entry.path, openpgp.read_keys(text.encode()), fingerprint, now)
        except openpgp.Unreadable as error:
            return KeyState(entry.path, UNREADABLE, f"the key in the stanza cannot be read: {error}")
    paths = key_paths(host, entry)
    states: list[KeyState] = []
    for path in paths:
        found = _read(host, path)
        if isinstance(found, str):
            states.append(KeyState(path, MISSING if found == "is not there" else UNREADABLE, found))
        else:
            states.append(judge(path, found, fingerprint, now))
    for state in states:
        if state.usable:
            return state
    order = (EXPIRED, OTHER, UNREADABLE, MISSING)
    if not entry.signed_by.startswith("/"):
        expired = [state for state in states if state.state == EXPIRED]
        return expired[0] if expired else KeyState(TRUSTED[1], MISSING, f"no trusted key {fingerprint}")
    return min(states, key=lambda state: order.index(state.state))
