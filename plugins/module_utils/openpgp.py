# SPDX-License-Identifier: Apache-2.0
"""Just enough of OpenPGP to judge an apt key file: fingerprints, creation and expiry.

Read here instead of by ``gpg --show-keys``: a minimal host has no gpg (apt verifies with sqv), and gpg
makes a home folder where none is, which a read-only check must not. Signatures are not verified: apt
does that; this says why apt will refuse. Packet format: RFC 4880 (RFC 9580 for version 6 keys).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from typing import NamedTuple

PUBLIC_KEY = 6
SIGNATURE = 2
USER_ID = 13
_SELF_SIGNATURES = (0x10, 0x11, 0x12, 0x13, 0x1F)
_SUB_CREATED, _SUB_KEY_EXPIRES, _SUB_ISSUER, _SUB_ISSUER_FINGERPRINT = 2, 9, 16, 33
_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?P<headers>(?:[^\r\n]+\r?\n)*)[ \t]*\r?\n(?P<body>.*?)"
    rb"-----END PGP PUBLIC KEY BLOCK-----",
    re.DOTALL,
)


class Key(NamedTuple):
    """A primary key. Times are seconds since 1970; ``expires`` is None for a key without an end."""

    fingerprint: str
    created: int
    expires: int | None

    def expired(self, now: float) -> bool:
        """Whether the key's time is over."""
        return self.expires is not None and self.expires <= now


class Unreadable(ValueError):
    """The bytes are no OpenPGP key."""


def dearmor(data: bytes) -> bytes:
    """Binary packets from an ASCII-armoured or a binary key file. Raises Unreadable."""
    if data and data[0] & 0x80:
        return data
    blocks = [match["body"] for match in _ARMOR.finditer(data)]
    if not blocks:
        raise Unreadable("neither an armoured nor a binary OpenPGP key")
    try:
        # The line "=XXXX" is the checksum: outdated (RFC 9580) and no part of the data.
        return b"".join(base64.b64decode(re.sub(rb"^=\S{4}\s*$", b"", b, flags=re.MULTILINE)) for b in blocks)
    except binascii.Error as error:
        raise Unreadable(f"damaged armour: {error}") from error


def _new_length(data: bytes, at: int) -> tuple[int, int]:
    """(length, position after it) in the form of new packets and of subpackets."""
    first = data[at]
    if first < 192:
        return first, at + 1
    if first < 224:
        return ((first - 192) << 8) + data[at + 1] + 192, at + 2
    if first == 255:
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    raise Unreadable("a packet of partial length")


def packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, body) of each packet. Raises Unreadable."""
    at = 0
    while at < len(data):
        header = data[at]
        if not header & 0x80:
            raise Unreadable(f"no packet at byte {at}")
        if header & 0x40:
            tag = header & 0x3F
            length, start = _new_length(data, at + 1)
        else:
            tag, width = header >> 2 & 0x0F, header & 3
            if width == 3:
                raise Unreadable("a packet without a length")
            start = at + 1 + (1 << width)
            length = int.from_bytes(data[at + 1 : start], "big")
        if start + length > len(data):
            raise Unreadable("the key is cut off")
        yield tag, data[start : start + length]
        at = start + length


def _subpackets(area: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(area):
        length, start = _new_length(area, at)
        if not length or start + length > len(area):
            raise Unreadable("a damaged signature")
        yield area[start] & 0x7F, area[start + 1 : start + length]
        at = start + length


def _primary(body: bytes) -> tuple[str, int]:
    """(fingerprint, creation time) of a public key packet of version 4 or 6."""
    if body[0] == 4:
        digest = hashlib.sha1(
            b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False
        ).hexdigest()
    elif body[0] == 6:
        digest = hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest()
    else:
        raise Unreadable(f"a key of version {body[0]}")
    return digest.upper(), int.from_bytes(body[1:5], "big")


def _lifetime(body: bytes, fingerprint: str) -> tuple[int, int | None] | None:
    """(signature's time, key's lifetime in seconds) of the key's signature on itself, else None."""
    if body[0] not in (4, 6) or body[1] not in _SELF_SIGNATURES:
        return None
    width = 2 if body[0] == 4 else 4
    end = 4 + width + int.from_bytes(body[4 : 4 + width], "big")
    hashed = dict(_subpackets(body[4 + width : end]))
    size = int.from_bytes(body[end : end + width], "big")
    loose = dict(_subpackets(body[end + width : end + width + size]))
    both = {**loose, **hashed}
    own = bytes.fromhex(fingerprint)
    issuer = both.get(_SUB_ISSUER_FINGERPRINT, b"\0" + own)[1:]
    if issuer != own or both.get(_SUB_ISSUER, own[-8:]) != own[-8:]:
        return None
    expires = hashed.get(_SUB_KEY_EXPIRES)
    return int.from_bytes(hashed.get(_SUB_CREATED, b""), "big"), int.from_bytes(
        expires, "big"
    ) if expires else None


def read_keys(data: bytes) -> list[Key]:
    """The primary keys in a key file, armoured or binary. Raises Unreadable."""
    keys: list[Key] = []
    newest = -1
    try:
        for tag, body in packets(dearmor(data)):
            if tag == PUBLIC_KEY:
                fingerprint, created = _primary(body)
                keys.append(Key(fingerprint, created, None))
                newest = -1
            elif tag == SIGNATURE and keys:
                found = _lifetime(body, keys[-1].fingerprint)
                # The newest signature of the key on itself counts: an extended key carries both.
                if found is not None and found[0] >= newest:
                    newest, lifetime = found
                    key = keys[-1]
                    end = key.created + lifetime if lifetime else None
                    keys[-1] = Key(key.fingerprint, key.created, end)
    except IndexError as error:
        raise Unreadable("the key is cut off") from error
    if not keys:
        raise Unreadable("no public key in it")
    return keys


def only(data: bytes, fingerprint: str) -> bytes:
    """The binary packets of the one key with *fingerprint* in a key file; empty where it is not there.

    Raises Unreadable.
    """
    kept, ours = b"", False
    try:
        for tag, body in packets(dearmor(data)):
            if tag == PUBLIC_KEY:
                ours = _primary(body)[0] == fingerprint.upper()
            if ours:
                kept += bytes((0xC0 | tag, 0xFF)) + len(body).to_bytes(4, "big") + body
    except IndexError as error:
        raise Unreadable("the key is cut off") from error
    return kept
