# SPDX-License-Identifier: Apache-2.0
"""The lock file `lemonade-deploy.lock`: the only source of digests.

The controller reads and writes it as YAML; a host gets it as a module argument that is
parsed already, so everything here works on plain dictionaries. Upstream publishes no
checksums and re-creates tags (vllm-rocm's build-vllm-rocm.yml deletes and creates the
release), hence a digest of our own, taken once and committed by the user.
"""

from __future__ import annotations

import hashlib
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .releases import is_tag

SCHEMA = "lemonade-deploy/lock/1"
FILE_NAME = "lemonade-deploy.lock"
# What upstream's qualification feed said when the release was locked; no key: it did not answer.
QUALIFIED, UNQUALIFIED, NO_RECORD = "qualified", "unqualified", "no record"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
# What a depot writes beside a release's own files.
_TAKEN = re.compile(r"chunks\.json|\d{5}\.zst|.*\.(partial|progress)")


class LockError(Exception):
    """The lock file is wrong: the message names file, key and what was found."""

    def __init__(self, file: str, key: str, problem: str) -> None:
        super().__init__(f"{file}: {key}: {problem}" if key else f"{file}: {problem}")


@dataclass(frozen=True)
class Asset:
    """One file of a release; ``size`` in bytes, ``url`` is where it was locked from.

    ``upstream``: the sha256 that GitHub's API gave for it when it was locked, "" where it gave none.
    """

    name: str
    size: int
    sha256: str
    url: str = ""
    upstream: str = ""


@dataclass(frozen=True)
class TreeInfo:
    """The unpacked tree: its manifest's digest, bytes in regular files, number of files."""

    digest: str
    size: int
    files: int


@dataclass(frozen=True)
class Release:
    """One release tag, which upstream makes for one gfx family."""

    tag: str
    family: str
    assets: tuple[Asset, ...]
    tree: TreeInfo | None = None
    locked_at: str = ""
    source: str = ""
    qualification: str = ""

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(asset.size for asset in self.assets)

    @property
    def archive(self) -> str:
        """One sha256 for all assets in their order; tells two builds of one tag apart."""
        text = "".join(f"{a.sha256} {a.size} {a.name}\n" for a in self.assets)
        return hashlib.sha256(text.encode()).hexdigest()


class _Reader:
    """A dictionary that is read key by key; what is missing, wrong or left over is an error."""

    def __init__(self, value: Any, file: str, key: str) -> None:
        if not isinstance(value, Mapping):
            raise LockError(file, key, f"expected a mapping, found {_kind(value)}")
        self.value, self.file, self.key = value, file, key
        self.seen: set[str] = set()

    def child(self, name: str) -> str:
        return f"{self.key}.{name}" if self.key else name

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        self.seen.add(name)
        if name not in self.value:
            if default is None:
                raise LockError(self.file, self.child(name), "is missing")
            return default
        found = self.value[name]
        if not isinstance(found, kind) or isinstance(found, bool):
            raise LockError(self.file, self.child(name), f"expected {_NAMES[kind]}, found {_kind(found)}")
        return found

    def text(self, name: str, pattern: re.Pattern[str], what: str) -> str:
        found: str = self.get(name, str)
        if not pattern.fullmatch(found):
            raise LockError(self.file, self.child(name), f"expected {what}, found {found!r}")
        return found

    def positive(self, name: str) -> int:
        found: int = self.get(name, int)
        if found < 1:
            raise LockError(self.file, self.child(name), f"expected a number above 0, found {found}")
        return found

    def end(self) -> None:
        for name in self.value:
            if name not in self.seen:
                raise LockError(self.file, self.child(str(name)), "is not a key of this schema")


_NAMES: dict[type, str] = {str: "a text", int: "a whole number", list: "a list", dict: "a mapping"}


def _kind(value: Any) -> str:
    for kind in (bool, str, int, list, dict):
        if isinstance(value, kind):
            shown = repr(value) if isinstance(value, (str, int)) else reprlib.repr(value)  # a few of many
            return "true or false" if kind is bool else f"{_NAMES[kind]} ({shown})"[:80]
    return "nothing" if value is None else type(value).__name__


def parse(document: Any, file: str = FILE_NAME) -> dict[str, Release]:
    """The releases of a parsed lock file, by tag. Raises LockError."""
    top = _Reader(document, file, "")
    schema = top.get("schema", str)
    if schema != SCHEMA:
        raise LockError(file, "schema", f"expected {SCHEMA!r}, found {schema!r}")
    releases = _Reader(top.get("releases", dict), file, "releases")
    top.seen.add("packages")  # of the controller's depot; hosts have other vouchers for them
    top.end()
    return {str(tag): _release(str(tag), value, file) for tag, value in releases.value.items()}


def _release(tag: str, value: Any, file: str) -> Release:
    entry = _Reader(value, file, f"releases.{tag}")
    # A tag becomes a folder beside others: the form keeps `packages`, `token` and the like apart.
    if not _NAME.fullmatch(tag) or not is_tag(tag):
        raise LockError(file, entry.key, "is not a release tag (like vllm0.22.1-rocm7.13.0-gfx1151)")
    family = entry.text("family", _NAME, "a gfx family")
    assets = tuple(
        _asset(item, file, f"{entry.child('assets')}[{index}]")
        for index, item in enumerate(entry.get("assets", list))
    )
    if not assets:
        raise LockError(file, entry.child("assets"), "is empty")
    if len({asset.name for asset in assets}) != len(assets):
        raise LockError(file, entry.child("assets"), "names one asset twice")
    tree = _tree(entry.get("tree", dict, {}), file, entry.child("tree"))
    qualification = entry.get("qualification", str, "")
    if qualification not in ("", QUALIFIED, UNQUALIFIED, NO_RECORD):
        raise LockError(
            file,
            entry.child("qualification"),
            f"expected qualified, unqualified or no record, found {qualification!r}",
        )
    when, source = entry.get("locked_at", str, ""), entry.get("from", str, "")
    entry.end()
    return Release(tag, family, assets, tree, when, source, qualification)


def _asset(value: Any, file: str, key: str) -> Asset:
    entry = _Reader(value, file, key)
    asset = Asset(
        entry.text("name", _NAME, "a plain file name"),
        entry.positive("size"),
        entry.text("sha256", _SHA256, "64 hexadecimal digits"),
        entry.get("url", str, ""),
        entry.text("upstream_sha256", _SHA256, "64 hexadecimal digits") if "upstream_sha256" in value else "",
    )
    entry.end()
    if _TAKEN.fullmatch(asset.name):
        raise LockError(file, entry.child("name"), f"{asset.name} is a name that depots use themselves")
    if asset.upstream not in ("", asset.sha256):
        raise LockError(
            file, entry.child("upstream_sha256"), f"is {asset.upstream}, but sha256 is {asset.sha256}"
        )
    return asset


def _tree(value: Any, file: str, key: str) -> TreeInfo | None:
    if not value:
        return None
    entry = _Reader(value, file, key)
    tree = TreeInfo(
        entry.text("digest", _SHA256, "64 hexadecimal digits"),
        entry.positive("size"),
        entry.positive("files"),
    )
    entry.end()
    return tree


def document(releases: Mapping[str, Release]) -> dict[str, Any]:
    """The lock file's content for *releases*; `parse` reads it back."""
    return {"schema": SCHEMA, "releases": {tag: _public(releases[tag]) for tag in sorted(releases)}}


def _public(release: Release) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "family": release.family,
        "locked_at": release.locked_at,
        "from": release.source,
        **({"qualification": release.qualification} if release.qualification else {}),
        "assets": [_public_asset(asset) for asset in release.assets],
    }
    if release.tree:
        entry["tree"] = {
            "digest": release.tree.digest,
            "size": release.tree.size,
            "files": release.tree.files,
        }
    return entry


def _public_asset(asset: Asset) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": asset.name, **({"url": asset.url} if asset.url else {})}
    entry |= {"size": asset.size, "sha256": asset.sha256}
    return {**entry, **({"upstream_sha256": asset.upstream} if asset.upstream else {})}
