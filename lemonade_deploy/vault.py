# SPDX-License-Identifier: Apache-2.0
"""Passwords: asked once, here; handed on by files in the private folder or typed at prompts."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lemonade_deploy.errors import UsageError


def ask(prompt: str) -> str:
    """Ask on the terminal; UsageError where there is none."""
    if not sys.stdin.isatty():
        raise UsageError(f"{prompt.strip(': ')} was to be asked for, but standard input is no terminal.")
    return getpass.getpass(prompt, stream=sys.stderr)


@dataclass(frozen=True)
class VaultSecrets:
    """What to give Ansible as ``--vault-id`` and ``--vault-password-file``."""

    ids: tuple[str, ...] = ()
    password_files: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """The options for ansible-playbook."""
        found = [word for one in self.ids for word in ("--vault-id", one)]
        return found + [word for one in self.password_files for word in ("--vault-password-file", one)]


def prepare(
    ids: Sequence[str],
    password_files: Sequence[str],
    ask_password: bool,
    folder: Path,
    private: Path,
    asked: Callable[[str], str] = ask,
) -> VaultSecrets:
    """Check the files, ask for what has to be asked, write the answers into *private* (0600)."""
    made: list[str] = []
    for number, one in enumerate(ids):
        label, sign, source = one.rpartition("@")
        if source == "prompt":
            path = _keep(asked(f"Vault password ({label or 'default'}): "), private / f"vault-{number}")
        else:
            path = _file(source, folder)
        made.append(f"{label}{sign}{path}")
    files = [str(_file(one, folder)) for one in password_files]
    if ask_password:
        files.append(str(_keep(asked("Vault password: "), private / "vault-asked")))
    return VaultSecrets(tuple(made), tuple(files))


def _file(name: str, folder: Path) -> Path:
    path = (folder / Path(name).expanduser()).absolute()
    if not path.is_file():
        raise UsageError(f"{name}: no such vault password file.")
    return path


def _keep(password: str, path: Path) -> Path:
    path.touch(mode=0o600)
    path.write_text(password + "\n", encoding="utf-8")
    return path


@dataclass(frozen=True)
class Passwords:
    """Answers for Ansible's prompts, typed through the runner's terminal, never in argv."""

    arguments: tuple[str, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict, repr=False)


def ask_passwords(ssh: bool, become: bool, asked: Callable[[str], str] = ask) -> Passwords:
    """Ask for the passwords of -k and -K."""
    arguments: list[str] = []
    prompts: dict[str, str] = {}
    if ssh:
        arguments.append("--ask-pass")
        prompts[r"^SSH password:\s*?$"] = asked("SSH password: ")
    if become:
        arguments.append("--ask-become-pass")
        password = asked("BECOME password" + (" (empty: as the SSH password): " if ssh else ": "))
        prompts[r"^BECOME password.*:\s*?$"] = password
    return Passwords(tuple(arguments), prompts)
