# SPDX-License-Identifier: Apache-2.0
"""Which playbook a word on the command line means."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lemonade_deploy.content import content_root
from lemonade_deploy.errors import UsageError, did_you_mean


def kit_playbooks() -> dict[str, Path]:
    """The kit's own playbooks by file name."""
    return {path.name: path for path in sorted((content_root() / "playbooks").glob("*.yml"))}


def resolve(word: str, verbs: Iterable[str] = ()) -> Path:
    """First a file, then a playbook of the kit; else UsageError with the nearest name."""
    path = Path(word)
    if path.is_file():
        return path.resolve()
    kit = kit_playbooks()
    if word in kit:
        return kit[word]
    if path.is_dir():
        raise UsageError(f"{word} is a folder, not a playbook.")
    hint = did_you_mean(word, [*kit, *verbs])
    names = ", ".join(name for name in kit if name != "doctor.yml")
    raise UsageError(
        f"{word}: no such file, and no playbook of the kit.",
        hint or f"The kit's playbooks: {names}.",
    )
