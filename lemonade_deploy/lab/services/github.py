# SPDX-License-Identifier: Apache-2.0
"""What GitHub says of the lab's releases beside their files: its API, and upstream's qualification feed.

Simulated. A file `no-digests` in the API's folder makes it answer as GitHub does for assets that
were uploaded before it computed any; `digests.json` (name to sha256) overrides what it tells.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...domain.releases import DEFAULT_BASE, split
from .answers import TYPES, Answer, Hook, Request

API_HOST = "api.github.com"
RAW_HOST = "raw.githubusercontent.com"
REPOSITORY = "lemonade-sdk/vllm-rocm"
NO_DIGESTS = "no-digests"
OVERRIDE = "digests.json"
_RELEASE = re.compile(rf"/repos/{re.escape(REPOSITORY)}/releases/tags/([\w.+~-]*[\w+~-])")


def furnish(www: Path) -> None:
    """Make both sites below *www*; what a test put there stays."""
    (www / API_HOST).mkdir(parents=True, exist_ok=True)
    feed = www / RAW_HOST / REPOSITORY / "qualification-data" / "qualification" / "index.json"
    if not feed.exists():
        feed.parent.mkdir(parents=True, exist_ok=True)
        feed.write_text(json.dumps(_feed()) + "\n", encoding="utf-8")


def _feed() -> dict[str, Any]:
    """The row that upstream's feed really had for the default release (2026-08-11)."""
    base, _rocm, rocm = DEFAULT_BASE.rpartition("-rocm")
    row = {"tag": f"{base}-gfx1151", "gfx_target": "gfx1151", "rocm_version": rocm, "qualified": True}
    told = {"generated_at": "2026-08-11T22:25:00Z", "tests": {"passed": 14, "total": 15}}
    return {"schema_version": 1, "simulated": True, "builds": [{**row, **told}]}


def api(request: Request, site: Path) -> Answer:
    """``GET /repos/lemonade-sdk/vllm-rocm/releases/tags/TAG``."""
    found = _RELEASE.fullmatch(request.path)
    folder = site.parent / "github.com" / REPOSITORY / "releases" / "download" / (found[1] if found else "")
    if not found or not folder.is_dir():
        return Answer(404, b'{"message": "Not Found"}\n', TYPES[".json"])
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    told = {path.name: _digest(path, path.stat().st_mtime_ns) for path in files}
    if (site / OVERRIDE).exists():
        told |= json.loads((site / OVERRIDE).read_text(encoding="utf-8"))
    silent = (site / NO_DIGESTS).exists()
    assets = [_asset(path, None if silent else f"sha256:{told[path.name]}") for path in files]
    document = {"tag_name": found[1], "name": split(found[1])[0], "assets": assets}
    return Answer(200, json.dumps(document).encode() + b"\n", TYPES[".json"])


def _asset(path: Path, digest: str | None) -> dict[str, Any]:
    return {"name": path.name, "size": path.stat().st_size, "state": "uploaded", "digest": digest}


@functools.lru_cache(maxsize=64)
def _digest(path: Path, _changed: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


HOOKS: Mapping[str, Hook] = {API_HOST: api}
