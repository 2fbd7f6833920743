# SPDX-License-Identifier: Apache-2.0
"""Where the package lemonade-server comes from: the host's apt, the PPA, or a single .deb."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from . import apt, openpgp, paths
from .change import Call, Change, WriteFile
from .distribution import Distribution
from .host import CommandFailed, Host
from .lemond_service import LAYER, RUNTIME_MASK, UNIT
from .module import Refused
from .scrub import addresses

PACKAGE = "lemonade-server"
KEYSERVER = "https://keyserver.ubuntu.com/pks/lookup?op=get&options=mr&search=0x"
LAUNCHPAD = "https://api.launchpad.net/devel/~{owner}/+archive/ubuntu/{name}"
_TIMEOUT = 60  # s


@dataclass(frozen=True)
class Desired:
    """``source`` is auto, distro, ppa or deb; ``ppa`` is OWNER/NAME; ``fingerprint`` may be empty."""

    source: str = "auto"
    deb: str = ""
    deb_sha256: str = ""
    ppa: str = "lemonade-team/stable"
    ppa_url: str = "https://ppa.launchpadcontent.net"
    fingerprint: str = ""


@dataclass(frozen=True)
class Current:
    """``keys``: fingerprints in our key file. ``candidate``: whether the host's own apt has the package.

    ``candidate`` is None where nobody needs to know.
    """

    installed: bool
    distribution: Distribution
    source_text: str | None = None
    keys: tuple[str, ...] = ()
    deb_sha256: str = ""
    candidate: bool | None = None


def needs_candidate(desired: Desired, installed: bool, source_text: str | None) -> bool:
    """Whether the plan depends on what the host's own apt sources offer."""
    return not installed and (
        desired.source == "distro" or (desired.source == "auto" and source_text is None)
    )


def plan(current: Current, desired: Desired) -> list[Change]:
    """What to do. Raises Refused where no source fits."""
    if desired.source == "deb":
        return _plan_deb(current, desired)
    changes = _plan_ppa(current, desired) if _wants_ppa(current, desired) else []
    if not current.installed:
        detail = "from the PPA" if changes or current.source_text else "from the host's apt sources"
        install = Call(lambda host: install_package(host, PACKAGE, refresh=True))
        changes.append(Change(LAYER, f"package {PACKAGE}", "install", detail, operations=(install,)))
    return changes


def _wants_ppa(current: Current, desired: Desired) -> bool:
    if desired.source == "ppa":
        wanted = True
    elif desired.source == "auto":
        # A source that an earlier run added is kept up; one that was never needed is not added.
        wanted = current.source_text is not None or current.candidate is False
    else:
        wanted = False
    if wanted and not current.distribution.ubuntu:
        raise Refused(
            f"apt has no {PACKAGE}, and the PPA is for Ubuntu; this is {current.distribution.name}.",
            "Set lemonade_server_source=deb with lemonade_server_deb and lemonade_server_deb_sha256.",
        )
    if desired.source == "distro" and current.candidate is False:
        raise Refused(
            f"The host's apt sources have no {PACKAGE}.",
            "Set lemonade_server_source to auto, ppa or deb.",
        )
    return wanted


def _plan_ppa(current: Current, desired: Desired) -> list[Change]:
    changes = []
    wanted = normal(desired.fingerprint)
    if not current.keys or (wanted and wanted not in current.keys):
        changes.append(
            Change(
                LAYER,
                "apt key lemonade",
                "write",
                wanted or "the fingerprint is Launchpad's word (lemonade_server_ppa_fingerprint is empty)",
                operations=(Call(lambda host: fetch_key(host, desired)),),
            )
        )
    text = source_text(desired, current.distribution.codename)
    if current.source_text != text:
        changes.append(
            Change(
                LAYER,
                "apt source lemonade",
                "write",
                paths.LEMONADE_SOURCE,
                current.source_text or "",
                text,
                (WriteFile(paths.LEMONADE_SOURCE, text),),
            )
        )
    return changes


def _plan_deb(current: Current, desired: Desired) -> list[Change]:
    if not desired.deb or not desired.deb_sha256:
        raise Refused(
            "lemonade_server_source=deb needs lemonade_server_deb and lemonade_server_deb_sha256.",
            "`sha256sum FILE` tells the latter; check it against what the publisher says.",
        )
    if current.installed and current.deb_sha256 == desired.deb_sha256.lower():
        return []
    install = Call(lambda host: install_deb(host, desired))
    return [Change(LAYER, f"package {PACKAGE}", "install", desired.deb, operations=(install,))]


def source_text(desired: Desired, codename: str) -> str:
    """The deb822 source of the PPA."""
    return (
        "# Written by lemonade-deploy (role lemonade_server).\n"
        "Types: deb\n"
        f"URIs: {desired.ppa_url.rstrip('/')}/{desired.ppa}/ubuntu\n"
        f"Suites: {codename}\n"
        "Components: main\n"
        f"Signed-By: {paths.LEMONADE_KEY}\n"
    )


def normal(fingerprint: str) -> str:
    """A fingerprint as people write it in one form: upper case, no spaces, no 0x."""
    return fingerprint.replace(" ", "").upper().removeprefix("0X")


# --- carrying it out -----------------------------------------------------------


def download(url: str, judged: bool = False) -> bytes:
    """The body of an https URL; of an http one where it is *judged* by a digest. Raises Refused."""
    if not url.startswith(("https://", "http://") if judged else "https://"):
        raise Refused(f"{url} is not https.", "Give an https URL, or a path on the host.")
    if addresses(url) != url:  # urllib takes it for a part of the host's name, and its errors quote that
        raise Refused(
            f"{addresses(url)} is fetched without a login only.", "Give such a URL, or a path on the host."
        )
    try:
        with urllib.request.build_opener().open(url, timeout=_TIMEOUT) as reply:
            return bytes(reply.read())
    except urllib.error.HTTPError as error:
        raise Refused(
            f"{url} answers {error.code} {error.reason}.",
            "Check the address, the PPA's name, the fingerprint.",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise Refused(
            f"Cannot fetch {url}: {error or type(error).__name__}",
            f"Check that the host reaches {urlsplit(url).netloc}.",
        ) from error


def launchpad_fingerprint(desired: Desired, fetch: Callable[[str], bytes] = download) -> str:
    """The fingerprint Launchpad gives for the PPA, as add-apt-repository asks for it."""
    owner, _slash, name = desired.ppa.partition("/")
    url = LAUNCHPAD.format(owner=quote(owner), name=quote(name))
    try:
        told = json.loads(fetch(url)).get("signing_key_fingerprint")
    except (ValueError, AttributeError):  # a page of somebody's proxy, for instance
        told = None
    if not told:
        raise Refused(
            f"Launchpad names no signing key for {desired.ppa}.", "Set lemonade_server_ppa_fingerprint."
        )
    return str(told)


def fetch_key(host: Host, desired: Desired, fetch: Callable[[str], bytes] = download) -> None:
    """Fetch the PPA's key and store it, if and only if it is the one with the wanted fingerprint."""
    wanted = normal(desired.fingerprint or launchpad_fingerprint(desired, fetch))
    data = fetch(KEYSERVER + wanted)
    try:
        found = [key.fingerprint for key in openpgp.read_keys(data)]
    except openpgp.Unreadable as error:
        raise Refused(
            f"The key server's answer for {wanted} is no key: {error}.", "Try again later."
        ) from error
    if found != [wanted]:
        raise Refused(
            f"The key server sent {', '.join(found) or 'no key'} instead of {wanted}; it was not stored.",
            "Compare lemonade_server_ppa_fingerprint with the PPA's page on Launchpad.",
        )
    host.write(paths.LEMONADE_KEY, data)


@contextmanager
def start_held_back(host: Host) -> Iterator[None]:
    """Keep the package's scripts from starting lemond with the package's settings (it would broadcast).

    A mask below /run: gone after a reboot at the latest, and outranked by our own unit in /etc, so an
    interrupted run leaves nothing that matters (the service module removes it as well).
    """
    held = not host.exists(paths.LEMOND_UNIT) and not host.exists(RUNTIME_MASK)
    if held:
        os.makedirs(host.path(os.path.dirname(RUNTIME_MASK)), exist_ok=True)
        os.symlink("/dev/null", host.path(RUNTIME_MASK))
        host.run(["systemctl", "daemon-reload"])
    try:
        yield
    finally:
        if held and host.exists(RUNTIME_MASK):
            os.unlink(host.path(RUNTIME_MASK))
            host.run(["systemctl", "daemon-reload"])
            host.run(["systemctl", "reset-failed", UNIT], check=False)


def install_package(host: Host, what: str, refresh: bool) -> None:
    """Install a package by name, or a .deb by path. Raises Refused with apt's words."""
    complaints = apt.update(host) if refresh else []
    with start_held_back(host):
        try:
            apt.apt_get(host, "--no-install-recommends", "install", what)
        except CommandFailed as error:
            raise Refused(
                f"apt cannot install {what}: {error}",
                f"Before that, apt update said: {' | '.join(complaints)}" if complaints else "",
            ) from error


def install_deb(host: Host, desired: Desired) -> None:
    """Install the .deb, if and only if it has the wanted digest."""
    # apt's sandbox user must be able to read the file.
    folder = tempfile.mkdtemp(prefix="lemonade-deploy-", dir=host.path("/var/tmp"))  # noqa: S108
    os.chmod(folder, 0o755)  # noqa: S103
    target = os.path.join(folder, f"{PACKAGE}.deb")
    try:
        if "://" in desired.deb:
            data: bytes | None = download(desired.deb, judged=True)
        else:
            data = host.read_bytes(desired.deb)
        if data is None:
            raise Refused(
                f"There is no file {desired.deb} on the host.", "Copy it there first, or give a URL."
            )
        digest = hashlib.sha256(data).hexdigest()
        if digest != desired.deb_sha256.lower():
            raise Refused(
                f"{desired.deb} has the SHA-256 {digest}, not {desired.deb_sha256}; it was not installed.",
                "Fetch it again, or correct lemonade_server_deb_sha256.",
            )
        with open(target, "wb") as stream:
            stream.write(data)
        install_package(host, host.unroot(target), refresh=False)
        host.write(paths.LEMONADE_DEB, digest + "\n")
    finally:
        shutil.rmtree(folder)
