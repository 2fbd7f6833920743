# SPDX-License-Identifier: Apache-2.0
"""Where the collection (playbooks, roles, plugins) stands: in a clone or in the wheel."""

from __future__ import annotations

from pathlib import Path


def content_root() -> Path:
    """The folder that holds playbooks/, roles/, plugins/ and inventories/."""
    package = Path(__file__).resolve().parent
    packaged = package / "_content"
    return packaged if packaged.is_dir() else package.parent


def link_collection(folder: Path) -> Path:
    """Make the content loadable as the collection ``lemonade.deploy`` below *folder*.

    Returns the path for ANSIBLE_COLLECTIONS_PATH. A link, so a clone's edits count at once.
    """
    place = folder / "ansible_collections" / "lemonade" / "deploy"
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(content_root(), target_is_directory=True)
    return folder
