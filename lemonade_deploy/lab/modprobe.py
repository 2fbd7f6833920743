# SPDX-License-Identifier: Apache-2.0
"""Which module wins and with which parameters: modprobe's rules over files in memory.

A *tree* maps paths without a leading slash to bytes: an initrd's files or those of a disk.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# modprobe.d(5): a file of the same name in an earlier folder hides a later one.
CONFIG_FOLDERS = ("etc/modprobe.d", "run/modprobe.d", "usr/local/lib/modprobe.d", "lib/modprobe.d")
SUFFIXES = ("", ".gz", ".xz", ".zst")


@dataclass
class Config:
    """What modprobe.d and the command line say."""

    blacklist: dict[str, str] = field(default_factory=dict)  # module -> where it says so
    disabled: dict[str, str] = field(default_factory=dict)  # `install X /bin/false`
    options: dict[str, dict[str, str]] = field(default_factory=dict)

    def parameters(self, module: str, defaults: Mapping[str, str]) -> dict[str, str]:
        """The module's parameters: *defaults* with the options in effect."""
        return {**defaults, **self.options.get(module, {})}


def config(files: Mapping[str, bytes], cmdline: str) -> Config:
    """Configuration from modprobe.d files (path -> bytes); the kernel command line comes last."""
    found = Config()
    chosen: dict[str, str] = {}
    for folder in reversed(CONFIG_FOLDERS):
        for path in files:
            parent, _, name = path.rpartition("/")
            if parent == folder and name.endswith(".conf"):
                chosen[name] = path
    for name in sorted(chosen):
        _read(found, files[chosen[name]].decode("utf-8", "replace"), "/" + chosen[name])
    _read_cmdline(found, cmdline)
    return found


def _read(found: Config, text: str, source: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        if len(words) < 2:
            continue
        directive, module, rest = words[0], plain(words[1]), words[2:]
        if directive == "blacklist":
            found.blacklist[module] = source
        elif directive == "options":
            _options(found, module, rest)
        elif directive == "install" and rest and rest[0].rsplit("/", 1)[-1] in ("false", "true"):
            found.disabled[module] = source


def _options(found: Config, module: str, words: Iterable[str]) -> None:
    for word in words:
        name, _, value = word.partition("=")
        found.options.setdefault(module, {})[plain(name)] = value.strip('"')


def _read_cmdline(found: Config, cmdline: str) -> None:
    for word in shlex.split(cmdline):
        name, _, value = word.partition("=")
        if name in ("modprobe.blacklist", "module_blacklist"):
            target = found.blacklist if name == "modprobe.blacklist" else found.disabled
            target.update({plain(module): f"the kernel's {name}" for module in value.split(",")})
        elif "." in name:
            module, _, parameter = name.partition(".")
            _options(found, plain(module), [f"{parameter}={value}"])


def plain(name: str) -> str:
    """A module's name as the kernel writes it."""
    return name.replace("-", "_")


def module_name(path: str) -> str:
    """The name of the module in a file."""
    return plain(path.rsplit("/", 1)[-1].partition(".ko")[0])


@dataclass(frozen=True)
class Found:
    """A module file and the modules it depends on (paths below /lib/modules/<release>)."""

    path: str
    depends: tuple[str, ...]


def find(modules_dep: str, module: str, exists: Callable[[str], bool]) -> Found | None:
    """The file that modules.dep gives for *module*, None where it names none or a missing file.

    depmod has put the winner of updates/ over kernel/ there already.
    """
    for line in modules_dep.splitlines():
        path, colon, rest = line.partition(":")
        if colon and module_name(path) == module:
            return Found(path, tuple(rest.split())) if exists(path) else None
    return None


def disk_config_files(root: Path) -> dict[str, bytes]:
    """The modprobe.d files of a disk, in the form of a tree."""
    files: dict[str, bytes] = {}
    for folder in CONFIG_FOLDERS:
        for path in (root / folder).glob("*.conf"):
            if path.is_file():
                files[f"{folder}/{path.name}"] = path.read_bytes()
    return files
