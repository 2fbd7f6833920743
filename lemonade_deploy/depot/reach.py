# SPDX-License-Identifier: Apache-2.0
"""Under which addresses other machines reach a server of this one."""

from __future__ import annotations

import ipaddress
import socket
import struct
from contextlib import suppress

ALL = ("0.0.0.0", "")  # noqa: S104  what a server is bound to that listens at every address
_SOMEWHERE = "192.0.2.1"  # RFC 5737: nobody has it; a datagram socket's connect() sends nothing
_SIOCGIFADDR = 0x8915  # linux/sockios.h: an interface's IPv4 address


def addresses(bind: str) -> list[str]:
    """The addresses to tell others: *bind*, or where that is all of them this machine's own.

    The one from which this machine reaches the rest of the world comes first.
    """
    if bind not in ALL:
        return [bind]
    found = [_outward(), *_of_interfaces()]
    return list(dict.fromkeys(one for one in found if one and not is_loopback(one))) or ["127.0.0.1"]


def is_loopback(address: str) -> bool:
    """Whether only this machine itself reaches *address*."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _outward() -> str:
    """The source address of the default route; "" where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_SOMEWHERE, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _of_interfaces() -> list[str]:
    """One IPv4 address of each interface that has one (Linux; elsewhere none)."""
    found: list[str] = []
    with suppress(ImportError, OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        import fcntl

        for _number, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                told = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(told[20:24]))
    return found
