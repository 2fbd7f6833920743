# SPDX-License-Identifier: Apache-2.0
"""What GRUB would boot: runs grub.cfg against the disk, with grubenv read and written as GRUB does.

The rules that matter were seen on a real GRUB 2.12: ``next_entry`` is emptied (not removed) when it
is taken; an id that is not in the menu gives no error but entry 0; a missing kernel stops at the
menu unless ``fallback`` names an index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from . import grubenv
from .grubscript import Command, If, Statement, expand, parse

CONFIG = "boot/grub/grub.cfg"
ENVIRONMENT = "boot/grub/grubenv"
_KEY_NAMES = {"$menuentry_id_option", "--id"}
_OPTIONS_WITH_VALUE = {"--class", "--users", "--hotkey", "--id"}


@dataclass
class Entry:
    """A menu entry, or a submenu with ``children``."""

    title: str
    id: str
    path: str  # ids joined by ">", as grub-set-default takes them
    body: tuple[Statement, ...] = ()
    children: list[Entry] | None = None


@dataclass(frozen=True)
class Chosen:
    """What an entry loads. Paths are absolute on the disk; ``initrd`` "" where it names none."""

    path: str
    kernel: str
    arguments: str
    initrd: str


class Stuck(Exception):
    """GRUB waits at its menu for a key that nobody presses."""


@dataclass
class Grub:
    """GRUB on the disk below *root*."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    menu: list[Entry] = field(default_factory=list)
    functions: dict[str, tuple[Statement, ...]] = field(default_factory=dict)
    # Set while an entry's body runs:
    _kernel: tuple[str, str] | None = None
    _initrd: str = ""
    _sink: list[Entry] | None = None
    _above: str = ""

    def read(self) -> None:
        """Run grub.cfg: builds the menu, takes next_entry. Stuck without a readable grub.cfg."""
        self.variables.update(
            prefix="/boot/grub",
            config_directory="/boot/grub",
            feature_menuentry_id="y",
            feature_default_font_path="y",
            feature_platform_search_hint="y",
            feature_timeout_style="y",
            grub_platform="pc",
            grub_cpu="i386",
            root="hd0,gpt2",
        )
        self._sink = self.menu
        try:
            text = (self.root / CONFIG).read_text(encoding="utf-8", errors="surrogateescape")
            self.run(parse(text))
        except FileNotFoundError:
            raise Stuck("no /boot/grub/grub.cfg: GRUB waits at its prompt") from None
        except ValueError as error:
            raise Stuck(f"/boot/grub/grub.cfg: {error}") from None

    # -- the choice ------------------------------------------------------------------------

    def choose(self) -> Chosen:
        """The entry that boots without a key press; Stuck where none can."""
        if not self.menu:
            raise Stuck("GRUB's menu is empty")
        if self.variables.get("timeout", "0").startswith("-"):
            raise Stuck(f"timeout={self.variables['timeout']}: GRUB waits at its menu for a key")
        tries = [self.find(self.variables.get("default", ""))]
        fallback = self.variables.get("fallback", "").split()
        tries += [
            self.menu[int(index)] for index in fallback if index.isdigit() and int(index) < len(self.menu)
        ]
        problems = []
        for entry in tries:
            try:
                return self.load(entry)
            except FileNotFoundError as error:
                problems.append(f"{entry.title}: file '{error}' not found")
        raise Stuck(f"{'; '.join(problems)}: GRUB waits for a key")

    def find(self, wanted: str) -> Entry:
        """The entry that ``default=wanted`` selects; entry 0 where it names none."""
        menu = self.menu
        while True:
            name, _, wanted = wanted.partition(">")
            entry = _match(menu, name) or menu[0]
            if not entry.children:
                return entry
            menu = entry.children

    def load(self, entry: Entry) -> Chosen:
        """Run an entry's commands; FileNotFoundError names a missing kernel or initrd."""
        self._kernel, self._initrd = None, ""
        self.variables["chosen"] = entry.title
        self.run(entry.body)
        if self._kernel is None:
            raise FileNotFoundError(f"no kernel in entry {entry.title}")
        return Chosen(entry.path, *self._kernel, self._initrd)

    # -- the script ------------------------------------------------------------------------

    def run(self, statements: tuple[Statement, ...]) -> bool:
        """Run statements; the last one's truth."""
        truth = True
        for statement in statements:
            truth = self._if(statement) if isinstance(statement, If) else self._command(statement)
        return truth

    def _if(self, statement: If) -> bool:
        for test, body in statement.branches:
            if self.run(test):
                return self.run(body)
        return self.run(statement.otherwise)

    def _command(self, command: Command) -> bool:
        words = [expand(word, self.variables) for word in command.words]
        # An unset variable that stands alone vanishes, as in a shell.
        name, arguments = words[0], words[1:]
        if name in ("menuentry", "submenu") and command.block is not None:
            return self._entry(name, [word for word in arguments if word], command.block)
        if name == "function" and command.block is not None:
            self.functions[arguments[0]] = command.block
            return True
        handler = getattr(self, f"_do_{name.strip('[]') or 'test'}", None)
        if handler is not None:
            return bool(handler(arguments))
        if name in self.functions:
            return self.run(self.functions[name])
        if "=" in name and not arguments:
            return self._do_set([name])
        return name not in ("loadfont", "keystatus", "false", "background_image", "cmosdump")

    def _entry(self, kind: str, arguments: list[str], block: tuple[Statement, ...]) -> bool:
        title, identity, position = "", "", 0
        while position < len(arguments):
            word = arguments[position]
            if word in _OPTIONS_WITH_VALUE:
                position += 1
                if word == "--id":
                    identity = arguments[position]
            elif word.startswith("--id="):
                identity = word[5:]
            elif not word.startswith("--") and not title:
                title = word
            position += 1
        entry = Entry(title, identity or title, self._above + (identity or title), block)
        assert self._sink is not None
        self._sink.append(entry)
        if kind == "submenu":
            outer, above = self._sink, self._above
            entry.children, self._above = [], f"{entry.path}>"
            self._sink = entry.children
            self.run(block)
            self._sink, self._above = outer, above
        return True

    def _do_set(self, arguments: list[str]) -> bool:
        for argument in arguments:
            name, equals, value = argument.partition("=")
            if equals:
                self.variables[name] = value
        return True

    def _do_unset(self, arguments: list[str]) -> bool:
        for name in arguments:
            self.variables.pop(name, None)
        return True

    def _do_load_env(self, _arguments: list[str]) -> bool:
        self.variables.update(grubenv.load(self.root / ENVIRONMENT))
        return True

    def _do_save_env(self, arguments: list[str]) -> bool:
        path = self.root / ENVIRONMENT
        values = grubenv.load(path)
        if not path.exists():
            return False
        values.update({name: self.variables.get(name, "") for name in arguments if not name.startswith("-")})
        path.write_bytes(grubenv.render(values))
        return True

    def _do_source(self, arguments: list[str]) -> bool:
        path = self._file(arguments[0])
        if not path.is_file():
            return False
        return self.run(parse(path.read_text(encoding="utf-8", errors="surrogateescape")))

    def _do_linux(self, arguments: list[str]) -> bool:
        if not self._file(arguments[0]).is_file():
            raise FileNotFoundError(arguments[0])
        self._kernel = (arguments[0], " ".join(word for word in arguments[1:] if word))
        return True

    def _do_initrd(self, arguments: list[str]) -> bool:
        for path in arguments:
            if not self._file(path).is_file():
                raise FileNotFoundError(path)
        self._initrd = arguments[-1] if arguments else ""
        return True

    def _do_test(self, arguments: list[str]) -> bool:
        words = arguments[:-1] if arguments[-1:] == ["]"] else arguments
        for joint, combine in (("-o", any), ("-a", all)):
            if joint in words:
                at = words.index(joint)
                return combine((self._do_test(words[:at]), self._do_test(words[at + 1 :])))
        if words[:1] == ["!"]:
            return not self._do_test(words[1:])
        if len(words) == 3 and words[1] in ("=", "==", "!="):
            return (words[0] == words[2]) == (words[1] != "!=")
        if len(words) == 2:
            return self._file_test(words[0], words[1])
        return bool(words and words[0])

    def _file_test(self, operator: str, word: str) -> bool:
        if operator in ("-n", "-z"):
            return bool(word) == (operator == "-n")
        path = self._file(word)
        return path.is_file() and path.stat().st_size > 0 if operator == "-s" else path.exists()

    def _file(self, path: str) -> Path:
        """A GRUB path, with or without ``(device)``, on the disk; /boot is on the root disk."""
        return self.root / path.rpartition(")")[2].lstrip("/")


def _match(menu: list[Entry], name: str) -> Entry | None:
    for entry in menu:
        if name and name in (entry.id, entry.title):
            return entry
    return menu[int(name)] if name.isdigit() and int(name) < len(menu) else None
