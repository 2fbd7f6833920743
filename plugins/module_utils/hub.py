# SPDX-License-Identifier: Apache-2.0
"""A model repository on the hub (huggingface.co or a mirror of it): its files, and whether one may have them.

Routes as huggingface_hub uses them: ``/api/models/REPO?blobs=true`` lists a repository's files with sizes
and digests, ``/REPO/resolve/COMMIT/PATH`` is a file. The list of a gated repository is open to all; its
files answer 401 without a token and 403 to a token whose owner has not accepted the licence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from .fetch import Download, FetchError, Policy, fetch_text
from .refusal import Refused

DEFAULT_URL = "https://huggingface.co"
_LIST_LIMIT = 1 << 25  # bytes; repositories with thousands of files have long lists
LICENCE = (
    "Accept the model's licence on huggingface.co with your account, and set lemonade_server_hf_token "
    "(in a vault) to a token of it."
)
# The engine reads safetensors; the same weights in other forms would only fill the disk.
_OTHER_FORMS = (".bin", ".pth", ".pt", ".onnx", ".gguf", ".h5", ".msgpack", ".ckpt", ".tflite")


@dataclass(frozen=True)
class File:
    """A file of a repository. ``size`` in bytes; ``sha256`` of large files, ``blob`` (Git's id) of others."""

    path: str
    size: int
    sha256: str = ""
    blob: str = ""

    @property
    def digest(self) -> str:
        """What tells this content from any other."""
        return self.sha256 or self.blob


@dataclass(frozen=True)
class Repository:
    """A repository at one commit, with the files that the engine needs."""

    name: str
    commit: str
    gated: bool
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def odd(path: str) -> bool:
    """Whether a file's name would lead out of the folder it is put into."""
    return path.startswith("/") or ".." in path.split("/") or "\0" in path


def needed(files: Sequence[File]) -> tuple[File, ...]:
    """*files* without the weights' other forms, where there are safetensors."""
    if not any(file.path.endswith(".safetensors") for file in files):
        return tuple(files)
    return tuple(
        file
        for file in files
        if not file.path.endswith(_OTHER_FORMS) and not file.path.startswith(("original/", "metal/", "onnx/"))
    )


class Hub:
    """The hub at *url*. The token goes there and nowhere a file is redirected to."""

    def __init__(self, url: str = DEFAULT_URL, token: str = "", policy: Policy | None = None) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._policy = policy

    def repository(self, name: str) -> Repository:
        """The repository *name* (``organisation/name``). Raises Refused with what is wrong."""
        url = f"{self.url}/api/models/{quote(name)}?blobs=true"
        try:
            text = fetch_text(url, self._policy, _LIST_LIMIT, self._token)
        except FetchError as error:
            if error.status not in (401, 403):
                raise
            text = None  # so the hub speaks of a repository that is not there, or not yours
        if text is None:
            raise Refused(
                f"{self.url} has no model {name}, or hides it from "
                f"{'this token' if self._token else 'who has no token'}.",
                "Check the checkpoint's name in models_wanted; a private one needs lemonade_server_hf_token.",
            )
        try:
            told = json.loads(text)
            listed = tuple(_file(entry) for entry in told["siblings"])
            if any(odd(file.path) for file in listed):
                raise ValueError("a path that leads elsewhere")
            return Repository(name, str(told["sha"]), bool(told.get("gated")), needed(listed))
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(
                f"{url} answers with something that is no list of a model's files.",
                "Check models_hub_url: it must behave like huggingface.co.",
            ) from error

    def check_access(self, repository: Repository) -> None:
        """Refused where the files of a gated repository are not for this token."""
        if not repository.gated:
            return
        try:
            self.download(repository, min(repository.files, key=lambda file: file.size)).exists()
        except FetchError as error:
            if error.status == 401:
                raise Refused(
                    f"{repository.name} is gated: it needs a Hugging Face token"
                    f"{', and ours is not accepted' if self._token else ' and none is set'} (HTTP 401).",
                    LICENCE,
                ) from error
            if error.status == 403:
                raise Refused(
                    f"{repository.name} is gated, and the token's owner may not have it yet (HTTP 403).",
                    LICENCE,
                ) from error
            raise

    def download(self, repository: Repository, file: File) -> Download:
        """A file, to be read from any offset."""
        url = f"{self.url}/{quote(repository.name)}/resolve/{repository.commit}/{quote(file.path)}"
        return Download(url, file.size, self._policy, self._token, kept=True)

    def text(self, repository: Repository, path: str) -> str | None:
        """A small file of the repository, None where it has none of that name."""
        file = next((one for one in repository.files if one.path == path), None)
        if file is None:
            return None
        return b"".join(self.download(repository, file).chunks()).decode("utf-8", "replace")


def _file(entry: dict[str, Any]) -> File:
    large = entry.get("lfs") or {}
    return File(
        str(entry["rfilename"]),
        int(large.get("size") or entry.get("size") or 0),
        str(large.get("sha256") or large.get("oid") or ""),
        "" if large else str(entry.get("blobId") or ""),
    )
