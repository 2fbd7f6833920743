# SPDX-License-Identifier: Apache-2.0
"""Small real Debian packages, made with dpkg-deb and byte-identical for identical input."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from ..shell import run

# 2026-02-01: every file in a package bears this time, so a package depends on its input alone.
SOURCE_DATE_EPOCH = "1769904000"
MAINTAINER = "lemonade-deploy lab (simulated) <lab@invalid>"


@dataclass(frozen=True)
class File:
    """Content and mode of one file in a package."""

    content: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Deb:
    """What goes into one binary package. Paths are absolute, as on the host."""

    name: str
    version: str
    summary: str
    architecture: str = "amd64"
    fields: Mapping[str, str] = field(default_factory=dict)  # Depends, Section, …
    files: Mapping[str, File] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)  # path -> target
    conffiles: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)  # postinst, … -> text
    triggers: str = ""

    @property
    def file_name(self) -> str:
        """Name of the .deb: without the epoch, as in every archive."""
        return f"{self.name}_{self.version.split(':')[-1]}_{self.architecture}.deb"

    def control(self) -> str:
        """The control file's text."""
        honest = "Simulated by lemonade-deploy: it holds no code of the real one."
        head = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": MAINTAINER,
            "Priority": "optional",
            "Section": "kernel",
            **self.fields,
            "Description": f"{self.summary}\n {honest}",
        }
        return "".join(f"{key}: {value}\n" for key, value in head.items())


def build(deb: Deb, folder: Path) -> Path:
    """Write *deb* into *folder* and return its path. Raises LabError where dpkg-deb refuses it."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / deb.file_name
    with tempfile.TemporaryDirectory(prefix="lemonade-lab-deb-") as scratch:
        root = Path(scratch)
        root.chmod(0o755)
        _lay(root, deb)
        run(
            ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", root, target],
            env={"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH},
        )
    return target


def script(name: str, **values: str) -> str:
    """Text of ``scripts/<name>`` with each ``@KEY@`` replaced. Raises LookupError for a missing key."""
    text = resources.files(__package__).joinpath("scripts", name).read_text("utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    left = re.search(r"@[A-Z_]+@", text)
    if left:
        raise LookupError(f"scripts/{name}: nothing to put for {left.group()}")
    return text


def _lay(root: Path, deb: Deb) -> None:
    def put(path: str, content: bytes, mode: int) -> None:
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(mode)

    for path, item in deb.files.items():
        put(path, item.content, item.mode)
    for path, target in deb.links.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    put("DEBIAN/control", deb.control().encode(), 0o644)
    for name, text in deb.scripts.items():
        put(f"DEBIAN/{name}", text.encode(), 0o755)
    if deb.conffiles:
        put("DEBIAN/conffiles", "".join(f"{path}\n" for path in deb.conffiles).encode(), 0o644)
    if deb.triggers:
        put("DEBIAN/triggers", deb.triggers.encode(), 0o644)
    for folder in (path for path in root.rglob("*") if path.is_dir() and not path.is_symlink()):
        folder.chmod(0o755)
