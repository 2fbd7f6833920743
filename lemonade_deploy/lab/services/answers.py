# SPDX-License-Identifier: Apache-2.0
"""Which answer the lab's web server gives: a file below the host name's folder, or a hook's own.

A hook is a function ``(Request, Path) -> Answer | None`` for one host name; the path is that
host's folder and None means "as a file". A module named with ``--hooks`` brings a dictionary
``HOOKS`` from host names to such functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

TYPES = {
    ".json": "application/json",
    ".key": "application/pgp-keys",
    ".asc": "application/pgp-keys",
    ".deb": "application/vnd.debian.binary-package",
    ".gz": "application/gzip",
    ".html": "text/html; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
OCTETS = "application/octet-stream"


@dataclass(frozen=True)
class Request:
    """What was asked: method, host name, decoded path and query, and the bearer's token."""

    method: str
    host: str
    path: str
    query: Mapping[str, list[str]]
    token: str = ""

    @classmethod
    def parse(cls, method: str, host: str, target: str, authorization: str = "") -> Request:
        """From the request line and the headers Host (its port is dropped) and Authorization."""
        parts = urlsplit(target)
        name = host.partition(":")[0].lower()
        token = authorization.removeprefix("Bearer ").strip()
        return cls(method, name, unquote(parts.path), parse_qs(parts.query), token)


@dataclass(frozen=True)
class Answer:
    """A status with a body: bytes, or a file that is sent with ranges and caching."""

    status: int
    body: bytes | Path
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


Hook = Callable[[Request, Path], "Answer | None"]
NOT_FOUND = Answer(404, b"not found in the lab\n")


def answer(request: Request, www: Path, hooks: Mapping[str, Hook]) -> Answer:
    """The answer to *request*; *www* holds a folder for each host name."""
    site = _site(www, request.host)
    if site is None:
        return Answer(404, f"the lab serves no host {request.host!r}\n".encode())
    hook = hooks.get(request.host)
    given = hook(request, site) if hook else None
    return given if given is not None else static(site, www, request.path)


def static(site: Path, www: Path, path: str) -> Answer:
    """The file for *path*, or 404. Links may lead to another host's folder, never out of *www*."""
    try:
        place = (site / path.lstrip("/")).resolve()
        inside = place.is_relative_to(www.resolve()) and ".." not in path.split("/")
        found = inside and place.is_file()
    except (OSError, ValueError):  # a name too long, or one with a NUL
        return NOT_FOUND
    if not found:
        return NOT_FOUND
    return Answer(200, place, TYPES.get(place.suffix, OCTETS))


def keyserver(request: Request, site: Path) -> Answer | None:
    """``/pks/lookup?op=get&search=0x<fingerprint or its end>``: the armored key."""
    if request.path != "/pks/lookup":
        return None
    wanted = request.query.get("search", [""])[0].removeprefix("0x").upper()
    found = [
        key for key in sorted((site / "keys").glob("*.asc")) if len(wanted) >= 8 and key.stem.endswith(wanted)
    ]
    if request.query.get("op", [""])[0] != "get" or len(found) != 1:
        return Answer(404, b"No results found\n")
    return Answer(200, found[0].read_bytes(), TYPES[".asc"])


def launchpad(request: Request, site: Path) -> Answer | None:
    """Launchpad's API answers are files here, but JSON."""
    given = static(site, site.parent, request.path)
    return Answer(given.status, given.body, TYPES[".json"]) if given.status == 200 else None


def pages(request: Request, site: Path) -> Answer | None:
    """A folder's address gives its page."""
    if not request.path.endswith("/"):
        return None
    return static(site, site.parent, f"{request.path}index.html")


BUILT_IN: Mapping[str, Hook] = {
    "keyserver.ubuntu.com": keyserver,
    "api.launchpad.net": launchpad,
    "kernel.ubuntu.com": pages,
}


def _site(www: Path, host: str) -> Path | None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", host) or ".." in host:
        return None
    site = www / host
    return site if site.is_dir() else None
