# SPDX-License-Identifier: Apache-2.0
"""AMD's apt sources as the dkms policy wants them: version, suite, key and pin, judged before a write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import apt_fetch, apt_formats, apt_keys, apt_pins, apt_sources, driver_releases, openpgp, paths
from .apt_formats import Entry
from .distribution import read_distribution
from .findings import printable
from .host import Host
from .refusal import Refused

KEY_PATH = "rocm/rocm.gpg.key"  # below the same root as amdgpu/ (AMD's install pages)
KEY_URL = f"https://repo.radeon.com/{KEY_PATH}"
REPOSITORY_URL = "https://repo.radeon.com/amdgpu/{}/ubuntu"
NEW_SOURCE = f"{apt_sources.PARTS}/lemonade-deploy-amdgpu.sources"

# What AMD's installer ships. Without it the distribution's packages win by version (ROCm#3656, #6367).
REPOSITORY_PIN = f"""\
# Managed by lemonade-deploy (role amdgpu_driver): AMD's repository wins over the distribution's packages.
Package: *
Pin: {apt_pins.REPOSITORY_PIN}
Pin-Priority: {apt_pins.REPOSITORY_PRIORITY}
"""


@dataclass(frozen=True)
class Request:
    """What the decision and the role ask for.

    ``version``: the repository's; "" leaves what is installed. ``kernel``: release that will run.
    """

    version: str
    exact: bool
    fingerprint: str
    kernel: str


@dataclass(frozen=True)
class Sources:
    """Files of apt to write: texts of sources, keys as bytes, and the kit's own pin (None: no file).

    ``before``: old text of each source (None: a new file). ``entries``: the driver's active entries
    as they will be. ``refusal``: why apt cannot be asked (a key that cannot be put right); it counts
    only where something is wanted of the repository.
    """

    texts: dict[str, str] = field(default_factory=dict)
    before: dict[str, str | None] = field(default_factory=dict)
    keys: dict[str, bytes] = field(default_factory=dict)
    pin: str | None = None
    entries: tuple[Entry, ...] = ()
    refusal: Refused | None = None

    @property
    def changes(self) -> bool:
        """Whether a source or a key is to be written, so that apt must be updated."""
        return bool(self.texts or self.keys)

    @property
    def overlay(self) -> dict[str, str]:
        """Planned texts for a private apt, "" for a file that is to go."""
        return {**self.texts, paths.APT_PIN: self.pin or ""}


def _place(entry: Entry) -> str:
    return f"{entry.path} line {entry.line} ({entry.text})"


def wrong_suites(entries: Sequence[Entry], expected: str | None) -> list[Entry]:
    """Entries whose suite is that of another release; none where AMD has no suite for this one."""
    return [entry for entry in entries if expected is not None and entry.suite != expected]


def demand_clear(host: Host, entries: Sequence[Entry]) -> None:
    """Demand that no entry is for another release and none is there twice. Raises Refused."""
    distribution = read_distribution(host)
    suite = apt_sources.expected_suite(distribution.base, distribution.version)
    wrong = wrong_suites(entries, suite)
    if wrong:
        raise Refused(
            f"{_place(wrong[0])}: the suite {wrong[0].suite} is another release's; "
            f"{distribution.name} needs {suite}",
            f"change {wrong[0].suite} to {suite} in {wrong[0].path} line {wrong[0].line}, then run again",
        )
    twice = apt_sources.duplicates(entries)
    if twice:
        raise Refused(
            f"AMD's driver repository is named more than once: {'; '.join(map(_place, twice))}",
            f"keep one of them: remove {twice[-1].path} line {twice[-1].line}, for example; then run again",
        )


def plan(host: Host, request: Request, now: float | None = None) -> Sources:
    """What must change so that apt takes the driver from the wanted repository; empty where all is good.

    Fetches AMD's key where there is no source yet, or where the key of one is missing or expired.
    Raises Refused where a new source cannot be made.
    """
    texts = apt_sources.read_sources(host)
    pin = wanted_pin(host)
    enabled = [entry for entry in apt_sources.driver_entries(texts) if entry.enabled]
    if not apt_sources.active(enabled):
        text = _new_source(host, request)
        entries = apt_formats.parse(NEW_SOURCE, text)
        return Sources({NEW_SOURCE: text}, {NEW_SOURCE: texts.get(NEW_SOURCE)}, {}, pin, tuple(entries))
    planned = _switched(texts, enabled, request)
    after = apt_sources.active(apt_sources.driver_entries({**texts, **planned}))
    keys: dict[str, bytes] = {}
    refusal: Refused | None = None
    for entry in after:
        state = apt_keys.entry_key(host, entry, request.fingerprint, time.time() if now is None else now)
        if state.usable or state.path in keys:
            continue
        try:
            if entry.path == NEW_SOURCE and state.path == NEW_SOURCE:
                planned[NEW_SOURCE] = _new_source(host, request)
            else:
                keys[state.path] = _new_key(host, entry, state, request.fingerprint)
        except Refused as refused:
            refusal = refusal or refused
    before: dict[str, str | None] = {path: texts[path] for path in planned}
    return Sources(planned, before, keys, pin, tuple(after), refusal)


def _switched(texts: dict[str, str], enabled: Sequence[Entry], request: Request) -> dict[str, str]:
    """New texts of the files in which an enabled entry's version is not the wanted one."""
    planned: dict[str, str] = {}
    for path, text in texts.items():
        old = [
            entry
            for entry in enabled
            if entry.path == path
            and not driver_releases.satisfies(
                apt_sources.version(entry) or "", request.version, request.exact
            )
        ]
        if old:
            planned[path] = apt_sources.with_versions(text, old, request.version)
    return planned


def left_alone(host: Host) -> list[Entry]:
    """AMD's entries that no switch touches: graphics, rocm, proprietary, and what is not enabled."""
    entries = apt_sources.entries(apt_sources.read_sources(host))
    amd = [entry for entry in entries if apt_sources.is_amd(entry)]
    return [entry for entry in amd if not (apt_sources.is_driver(entry) and entry.enabled)]


def wanted_pin(host: Host) -> str | None:
    """Text of the kit's own pin file under dkms: None where another pin lets AMD's repository win."""
    others = [pin for pin in apt_pins.read_pins(host) if pin.path != paths.APT_PIN]
    return None if apt_pins.repository_pin(others) else REPOSITORY_PIN


def probe(host: Host, entries: Sequence[Entry]) -> None:
    """Demand that each entry's suite is there, before anything is written. Raises Refused."""
    for uri in dict.fromkeys(f"{entry.uri.rstrip('/')}/dists/{entry.suite}/InRelease" for entry in entries):
        try:
            apt_fetch.fetch(host, uri)
        except apt_fetch.Unfetchable as error:
            raise Refused(
                f"AMD's repository cannot be used, and nothing was changed: {printable(str(error))}",
                apt_fetch.advice(str(error)) or "see https://repo.radeon.com/amdgpu/",
            ) from error


def _new_source(host: Host, request: Request) -> str:
    distribution = read_distribution(host)
    suite = apt_sources.expected_suite(distribution.base, distribution.version)
    if suite is None:
        raise Refused(
            f"AMD's driver repository has no suite for {distribution.name}",
            "use amdgpu_driver_policy: intree, or add a source for it by hand",
        )
    key = _fetch_key(host, [KEY_URL], request.fingerprint)
    if key[:1] != b"-":
        raise Refused(f"{KEY_URL} answers with a key that is no text", "add AMD's source by hand")
    if not key.isascii():
        raise Refused(f"{KEY_URL} answers with a key that is no plain text", "add AMD's source by hand")
    lines = key.decode("ascii").strip().splitlines()
    indented = "\n".join(f" {line}" if line.strip() else " ." for line in lines)
    return (
        "# Managed by lemonade-deploy (role amdgpu_driver)\n"
        "Types: deb\n"
        f"URIs: {REPOSITORY_URL.format(request.version)}\n"
        f"Suites: {suite}\n"
        "Components: main\n"
        "Architectures: amd64\n"
        f"Signed-By:\n{indented}\n"
    )


def _new_key(host: Host, entry: Entry, state: apt_keys.KeyState, fingerprint: str) -> bytes:
    """AMD's key in the form that the file of *state* has. Raises Refused where it is not ours to replace."""
    if state.path == entry.path:
        raise Refused(f"{_place(entry)}: {state.why}", "put AMD's present key into that stanza (Signed-By)")
    if state.state == apt_keys.OTHER:
        raise Refused(
            f"{state.path}: {state.why}",
            "where a mirror signs with its own key and you trust it, set amdgpu_driver_repo_key_fingerprint "
            "to that; else put AMD's key there",
        )
    if not state.path.endswith((".gpg", ".asc")):
        raise Refused(
            f"{_place(entry)}: {state.why}", "name a key file there: signed-by=/etc/apt/keyrings/rocm.gpg"
        )
    if state.state == apt_keys.EXPIRED and len(openpgp.read_keys(host.read_bytes(state.path) or b"")) > 1:
        raise Refused(
            f"{state.path}: {state.why}; other keys are in the same file",
            f"replace AMD's key in {state.path}",
        )
    base = entry.uri[: entry.uri.index("/amdgpu/")]  # the source may name a mirror of all of AMD's tree
    data = _fetch_key(host, [f"{base}/{KEY_PATH}", KEY_URL], fingerprint)
    if state.path.endswith(".gpg"):
        return openpgp.dearmor(data)
    if data[:1] != b"-":
        raise Refused(
            f"AMD's key comes in binary form, {state.path} wants text", "put it there with `gpg --enarmor`"
        )
    return data


def _fetch_key(host: Host, urls: Sequence[str], fingerprint: str) -> bytes:
    """AMD's key from the first of *urls* that has it, judged by fingerprint and expiry. Raises Refused."""
    troubles = []
    for url in dict.fromkeys(urls):
        try:
            data = apt_fetch.fetch(host, url)
            state = apt_keys.judge(url, openpgp.read_keys(data), fingerprint, time.time())
        except (apt_fetch.Unfetchable, openpgp.Unreadable) as error:
            troubles.append(f"{url}: {error}")
            continue
        if state.usable:
            return data
        troubles.append(f"{url}: {state.why}")
    found = "; ".join(troubles)
    raise Refused(
        f"AMD's signing key cannot be had: {found}",
        apt_fetch.advice(found) or "check amdgpu_driver_repo_key_fingerprint against AMD's documentation",
    )
