# SPDX-License-Identifier: Apache-2.0
"""What the lab's release server and model hub hold: built into the cache once, linked into a www tree."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

from ...domain import releases
from ...domain.gfx import FAMILIES
from ..say import step
from ..shell import LabError
from . import bundle, light, models
from .archive import Asset, pack
from .install import REQUIREMENTS
from .interpreter import ENGINE_PYTHON, find, own
from .simulated import asset

ENGINES: dict[str, ModuleType] = {"vllm": bundle, "light": light}
# Below the www tree: a folder for each host name that the lab's server answers for.
DOWNLOADS = "github.com/lemonade-sdk/vllm-rocm/releases/download"
HUB = "huggingface.co"
# Code that decides what is in an archive: a change there makes a new one.
SOURCES = ("archive.py", "elf.py", "interpreter.py", "simulated.py")
RECORD = "release.json"


@dataclass(frozen=True)
class Release:
    """One release tag as served. ``engine`` and ``version`` are what reports must name."""

    tag: str
    family: str
    engine: str
    version: str
    assets: tuple[Asset, ...]

    @property
    def digest(self) -> str:
        """One sha256 for all assets in their order; tells two builds of one tag apart."""
        text = "".join(f"{a.sha256} {a.size} {a.name}\n" for a in self.assets)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class EngineRelease:
    """All that an engine serves from: releases for each family, the hub's store, and its models."""

    engine: str
    version: str
    releases: tuple[Release, ...]
    store: Path
    models: tuple[models.Model, ...]


def build(
    cache: Path, www: Path, engine: str = "vllm", families: Sequence[str] = ("gfx1151",)
) -> EngineRelease:
    """Make (once) and serve: releases below ``www``/github.com, models below ``www``/huggingface.co.

    *cache* and *www* are best on one file system (hard links, else copies). The www tree then holds
    this engine's releases only. LabError says what is missing. A second call takes milliseconds.
    """
    if engine not in ENGINES:
        raise LabError(f"unknown engine {engine!r}: choose one of {', '.join(ENGINES)}")
    unknown = sorted(set(families) - set(FAMILIES.values()))
    if unknown:
        raise LabError(
            f"no bundle family {', '.join(unknown)}; known: {', '.join(sorted(set(FAMILIES.values())))}"
        )
    cache = cache / "engine"
    cache.mkdir(parents=True, exist_ok=True)
    made = tuple(_release(cache, engine, family) for family in families)
    store = models.build(cache, engine)
    downloads = www / DOWNLOADS
    shutil.rmtree(downloads, ignore_errors=True)
    for release, folder in made:
        _publish(folder, downloads / release.tag, release.assets)
    hub = www / HUB
    hub.parent.mkdir(parents=True, exist_ok=True)
    hub.unlink(missing_ok=True)
    hub.symlink_to(store.resolve(), target_is_directory=True)
    found = tuple(release for release, _ in made)
    return EngineRelease(engine, ENGINES[engine].version(), found, store, models.MODELS)


def _key(engine: str, family: str, tag: str) -> str:
    """Everything that a bundle is made from."""
    module = ENGINES[engine]
    here = Path(__file__).parent
    digest = hashlib.sha256(f"{engine} {family} {tag}".encode())
    for name in (*SOURCES, Path(str(module.__file__)).name):
        digest.update((here / name).read_bytes())
    for name in module.ENGINE_FILES:
        digest.update(asset(name))
    if engine == "vllm":
        digest.update(asset(REQUIREMENTS))
    digest.update((find(ENGINE_PYTHON) if engine == "vllm" else own()).identity.encode())
    return digest.hexdigest()[:16]


def _release(cache: Path, engine: str, family: str) -> tuple[Release, Path]:
    """The release's record and the folder with its assets."""
    tag = releases.tag(releases.DEFAULT_BASE, family)
    place = cache / f"release-{engine}-{family}-{_key(engine, family, tag)}"
    if not place.is_dir():
        _make(cache, place, engine, family, tag)
    raw = json.loads((place / RECORD).read_text(encoding="utf-8"))
    raw["assets"] = tuple(Asset(**item) for item in raw["assets"])
    return Release(**raw), place


def _make(cache: Path, place: Path, engine: str, family: str, tag: str) -> None:
    module = ENGINES[engine]
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=cache) as temporary:
        tree, draft = Path(temporary) / "tree", Path(temporary) / "assets"
        with step(f"bundle {engine} for {family} in AMD's layout ({module.version()})"):
            tree.mkdir(mode=0o755)
            module.write_tree(cache, tree, family)
        with step(f"archive of the {engine} bundle"):
            assets = tuple(pack(tree, draft, tag, module.PART_SIZE))
        release = Release(tag, family, engine, module.version(), assets)
        (draft / RECORD).write_text(json.dumps(asdict(release), indent=2) + "\n", encoding="utf-8")
        draft.rename(place)


def _publish(source: Path, target: Path, assets: Sequence[Asset]) -> None:
    target.mkdir(parents=True)
    for item in assets:
        try:
            (target / item.name).hardlink_to(source / item.name)
        except OSError:  # another file system
            shutil.copy2(source / item.name, target / item.name)
