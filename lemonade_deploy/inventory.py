# SPDX-License-Identifier: Apache-2.0
"""Which hosts a run is about: -i, else what the folder names, else this machine."""

from __future__ import annotations

import configparser
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from lemonade_deploy.errors import UsageError

THIS_MACHINE = "localhost"
# Ansible's discovery prefers any newer python3.N on the PATH (pyenv's, say), which has no
# bindings of apt; the distribution's own is the one that fits, and asking costs a round trip.
SYSTEM_PYTHON = "/usr/bin/python3"
_NAMES = ("inventory", "inventory.yml", "inventory.yaml", "inventory.ini")


@dataclass(frozen=True)
class Selection:
    """Inventory sources for Ansible, and the words that name them to the user."""

    sources: tuple[str, ...]
    said: str
    this_machine: bool = False


def config_file(folder: Path) -> Path | None:
    """The ansible.cfg that counts: $ANSIBLE_CONFIG, else the one in *folder*.

    As with Ansible itself, none that everybody could have put there.
    """
    named = os.environ.get("ANSIBLE_CONFIG")
    if not named and _open_to_all(folder):
        return None
    path = Path(named).expanduser() if named else folder / "ansible.cfg"
    if path.is_dir():
        path = path / "ansible.cfg"
    return path.resolve() if path.is_file() else None


def _open_to_all(folder: Path) -> bool:
    """Whether every user may write in *folder*."""
    return bool(folder.stat().st_mode & stat.S_IWOTH)


def read_config(folder: Path) -> dict[str, dict[str, str]]:
    """Sections and keys of that ansible.cfg; UsageError when it is no ini file."""
    path = config_file(folder)
    parser = configparser.ConfigParser(interpolation=None, strict=False, inline_comment_prefixes=(";",))
    if path is not None:
        try:
            parser.read_string(path.read_text(encoding="utf-8"), source=str(path))
        except (configparser.Error, OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}") from error
    return {section: dict(parser[section]) for section in parser.sections()}


def _checked(source: str, base: Path, origin: str) -> str:
    """One source as an absolute path, or a host list (``a,b,``) as it is."""
    if not source.replace(",", "").strip():
        # An empty path is the folder one stands in: not what an unset variable of a script means.
        raise UsageError(
            f"{source!r} is no inventory ({origin}).", "Give a file, a folder, or a host with a comma: HOST,"
        )
    if "," in source:
        return source
    path = base / Path(source).expanduser()
    if not path.exists():
        raise UsageError(
            f"{source}: no such inventory ({origin}).",
            "For one host write its name with a comma after it: -i HOST,",
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"{source}: the inventory cannot be read ({origin}).", "Check its permissions.")
    if path.is_file() and not os.access(path, os.X_OK):  # a program may be of any bytes
        _demand_text(path, source, origin)
    return str(path.absolute())


def _demand_text(path: Path, source: str, origin: str) -> None:
    """UsageError for a file that is no text: Ansible would take its first line for a host's name."""
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{source}:{line}: the inventory is no text in UTF-8 ({origin}).") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"{source}:{line}: the inventory is a binary file ({origin}).")


def _configured(folder: Path) -> tuple[list[str], Path, str] | None:
    """Sources named by $ANSIBLE_INVENTORY or by ansible.cfg, the folder they are relative to, by whom."""
    named = os.environ.get("ANSIBLE_INVENTORY")
    if named:
        return [named] if named.endswith(",") else named.split(","), folder, "$ANSIBLE_INVENTORY"
    config = config_file(folder)
    value = read_config(folder).get("defaults", {}).get("inventory", "").strip()
    if config is None or not value:
        return None
    sources = [value] if value.endswith(",") else [part.strip() for part in value.split(",") if part.strip()]
    return sources, config.parent, str(config)


def select(given: Sequence[str], folder: Path, private: Path) -> Selection:
    """Choose the inventory. *private* holds the file made for this very machine.

    Raises UsageError naming a source that is not there or cannot be read.
    """
    if given:
        sources = tuple(_checked(source, folder, "-i") for source in given)
        return Selection(sources, ", ".join(given))
    configured = _configured(folder)
    if configured is not None:
        names, base, origin = configured
        sources = tuple(_checked(name, base, origin) for name in names)
        return Selection(sources, f"{', '.join(names)} (named by {origin})")
    for name in _NAMES:
        if (folder / name).exists() and _open_to_all(folder):
            # It may be a program, and anybody could have put it there.
            raise UsageError(f"./{name}: {folder} can be written by everybody.", f"Name it: -i {name}")
        if (folder / name).exists():
            return Selection((_checked(name, folder, "found here"),), f"./{name}")
    return Selection((str(_local_file(folder, private)),), "this machine (no -i, no inventory here)", True)


def _python() -> str:
    """The distribution's Python; where there is none, the one that runs us."""
    return SYSTEM_PYTHON if Path(SYSTEM_PYTHON).exists() else sys.executable


def _local_file(folder: Path, private: Path) -> Path:
    """An inventory of this machine alone; digests are locked beside the user, not beside it."""
    lock = {"vllm_rocm_lock_file": str(folder / "lemonade-deploy.lock")}
    hosts = {THIS_MACHINE: {"ansible_connection": "local", "ansible_python_interpreter": _python(), **lock}}
    path = private / "this-machine.yml"
    path.write_text(yaml.safe_dump({"all": {"hosts": hosts}}), encoding="utf-8")
    return path
