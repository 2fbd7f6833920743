# SPDX-License-Identifier: Apache-2.0
"""What the lab's release server and model hub hold: built into the cache once, linked into a www tree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ...domain import releases
from ...domain.gfx import FAMILIES
from ...domain.gunzip import CHUNK, inflate
from ...domain.lock import TreeInfo
from ...domain.unpack import Nowhere, unpack
from ..say import step
from ..shell import LabError
from . import bundle, light, models, publish
from .archive import Asset, pack
from .cache import locked_cache, scratch, settle
from .interpreter import ENGINE_PYTHON, find, own
from .simulated import asset

ENGINES: dict[str, ModuleType] = {"vllm": bundle, "light": light}
# Below the www tree: a folder for each host name that the lab's server answers for.
DOWNLOADS = "github.com/lemonade-sdk/vllm-rocm/releases/download"
HUB = "huggingface.co"
# Code that decides what is in an archive: a change there makes a new one.
SOURCES = ("archive.py", "elf.py", "install.py", "interpreter.py", "simulated.py")
RECORD = "release.json"
TREE = "tree.json"


@dataclass(frozen=True)
class Release:
    """One release tag as served. ``engine`` and ``version`` are what reports must name."""

    tag: str
    family: str
    engine: str
    version: str
    assets: tuple[Asset, ...]
    tree: TreeInfo

    @property
    def digest(self) -> str:
        """One sha256 for all assets in their order; tells two builds of one tag apart."""
        text = "".join(f"{a.sha256} {a.size} {a.name}\n" for a in self.assets)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class EngineRelease:
    """All that an engine serves: a release for each family, and models (the first is the default)."""

    engine: str
    version: str
    releases: tuple[Release, ...]
    models: tuple[models.Model, ...]


def build(
    cache: Path, www: Path, engine: str = "vllm", families: Sequence[str] = ("gfx1151",)
) -> EngineRelease:
    """Make (once) and serve: releases below ``www``/github.com, models below ``www``/huggingface.co.

    Copies from the cache; other engines' files there stay. LabError says what is missing. A second
    call takes milliseconds.
    """
    if engine not in ENGINES:
        raise LabError(f"unknown engine {engine!r}: choose one of {', '.join(ENGINES)}")
    known = sorted(set(FAMILIES.values()))
    if unknown := sorted(set(families) - set(known)):
        raise LabError(f"no bundle family {', '.join(unknown)}; known: {', '.join(known)}")
    with locked_cache(cache / "engine") as home:
        made = [_release(home, engine, family) for family in families]
        store = models.build(home, engine)
        sources = {release.tag: (folder, [a.name for a in release.assets]) for release, folder in made}
        publish.releases(sources, www / DOWNLOADS)
        publish.repositories(store, www / HUB)
    found = tuple(release for release, _ in made)
    return EngineRelease(engine, ENGINES[engine].version(), found, models.MODELS[engine])


def host_variables(engine: str) -> dict[str, Any]:
    """What a host with *engine* sets of the roles' public variables."""
    default = models.MODELS[engine][0]
    wanted = {"models_wanted": [{"name": default.name, "checkpoint": default.repository}]}
    base = ENGINES[engine].RELEASE_BASE
    return wanted if base == releases.DEFAULT_BASE else {"vllm_rocm_release": base, **wanted}


def _key(engine: str, family: str, tag: str) -> str:
    """Everything that a bundle is made from."""
    module = ENGINES[engine]
    here = Path(__file__).parent
    digest = hashlib.sha256(f"{engine} {family} {tag}".encode())
    for name in (*SOURCES, Path(str(module.__file__)).name):
        digest.update((here / name).read_bytes())
    for name in module.ENGINE_FILES:
        digest.update(asset(name))
    digest.update((find(ENGINE_PYTHON) if engine == "vllm" else own()).identity.encode())
    return digest.hexdigest()[:16]


def _release(home: Path, engine: str, family: str) -> tuple[Release, Path]:
    """The release's record and the folder with its assets."""
    tag = releases.tag(ENGINES[engine].RELEASE_BASE, family)
    place = home / f"release-{engine}-{family}-{_key(engine, family, tag)}"
    if not place.is_dir():
        _make(home, place, engine, family, tag)
    raw = json.loads((place / RECORD).read_text(encoding="utf-8"))
    raw["assets"] = tuple(Asset(**item) for item in raw["assets"])
    return Release(**raw, tree=_tree(place, raw["assets"])), place


def _tree(place: Path, assets: Sequence[Asset]) -> TreeInfo:
    """The unpacked tree, noted once beside the record (records of earlier labs have none)."""
    noted = place / TREE
    if not noted.exists():
        draft = noted.with_suffix(".new")
        draft.write_text(json.dumps(asdict(_tree_of(place, assets))) + "\n", encoding="utf-8")
        draft.replace(noted)
    return TreeInfo(**json.loads(noted.read_text(encoding="utf-8")))


def _tree_of(place: Path, assets: Sequence[Asset]) -> TreeInfo:
    """What a host gets from the archive, by the code that unpacks it there."""

    def chunks() -> Generator[bytes, None, None]:
        for part in assets:
            if part.name.endswith(".tar.gz"):
                with (place / part.name).open("rb") as stream:
                    while data := stream.read(CHUNK):
                        yield data

    manifest = unpack(inflate(chunks()), Nowhere())
    return TreeInfo(manifest.digest(), manifest.size, manifest.files)


def _make(home: Path, place: Path, engine: str, family: str, tag: str) -> None:
    module = ENGINES[engine]
    with scratch(home) as temporary:
        tree, draft = temporary / "tree", temporary / "assets"
        with step(f"bundle for {family} in AMD's layout, engine {engine} ({module.version()})"):
            tree.mkdir(mode=0o755)
            module.write_tree(home, tree, family)
        with step(f"archive of the {engine} bundle"):
            assets = tuple(pack(tree, draft, tag, module.PART_SIZE))
        record: dict[str, Any] = {"tag": tag, "family": family, "engine": engine, "version": module.version()}
        record["assets"] = [asdict(made) for made in assets]
        (draft / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        settle(draft, place)
