# SPDX-License-Identifier: Apache-2.0
"""A burn test over several models that can be stopped and goes on: which models, and what is done already."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from . import completion, engine, lemond_config, paths
from .bench import Bench, Method, Stopped
from .host import Host
from .lemond_api import Lemond, LemondUnreachable, wait_alive
from .refusal import Refused

SESSION = paths.STATE_DIR + "/bench.json"
LOCK = paths.STATE_DIR + "/bench.lock"
_ANSWER_TIMEOUT = 60  # s that systemd gets to start a lemond again that a model took down
# Models that do not chat, by lemond's labels (server_models.json).
_OTHER = {"embeddings", "reranking", "transcription", "realtime-transcription", "tts", "speech", "image"}


# What makes the engine's arguments and environment; paths of shell patterns.
_SERVING = (
    paths.LEMOND_DEFAULTS,
    lemond_config.USER_CONFIG,
    lemond_config.STATE_DIR + "/recipe_options.json",
    lemond_config.STATE_DIR + "/user_models.json",
    paths.LEMOND_UNIT,
    paths.LEMOND_UNIT + ".d/*.conf",
    paths.VLLM_UNIT,
    paths.VLLM_UNIT + ".d/*.conf",
    "/etc/default/lemond",
)


def serving_digest(host: Host) -> str:
    """SHA-256 of all that says how models are served: with another one the numbers are another engine's."""
    digest = hashlib.sha256()
    for pattern in _SERVING:
        for path in host.glob(pattern):
            text = host.read(path) or ""
            digest.update(f"{path} {len(text)}\n{text}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def chosen(client: Lemond, names: Sequence[str], every: bool) -> list[str]:
    """The models by the names that work: *names*, or all downloaded ones that chat, or the loaded ones.

    Raises Refused where there is none, or an unknown one among *names*.
    """
    if not names and every:
        names = _downloaded(client)
    elif not names:
        names = _loaded(client)
    if not names:
        raise Refused(
            "No model is loaded." if not every else "lemond has no model that is downloaded.",
            "Name models with --models, or take all downloaded ones with --all.",
        )
    return list(dict.fromkeys(completion.full_name(client, name) for name in names))


def _downloaded(client: Lemond) -> list[str]:
    answer = client.get("/v1/models")
    return [
        str(model["id"])
        for model in answer.entries("data")
        if "id" in model and model.get("downloaded", True) and not _OTHER & set(model.get("labels") or [])
    ]


def _loaded(client: Lemond) -> list[str]:
    answer = client.get("/v1/health")
    entries = answer.entries("all_models_loaded")
    return [str(entry["model_name"]) for entry in entries if entry.get("model_name")]


def environment(host: Host, client: Lemond) -> dict[str, str]:
    """What the numbers hold for; GPU and driver are preflight's to tell."""
    answer = client.get("/v1/health")
    release = host.os_release()
    return {
        "os": release.get("PRETTY_NAME", ""),
        "kernel": host.running_kernel(),
        "lemond": str(answer.field("version") or ""),
        "bundle": os.path.basename(engine.active_bundle(host)),
        "endpoint": client.endpoint,
    }


class Session:
    """The file that a stopped burn test leaves. It counts for the same models, method, arguments and host."""

    def __init__(self, host: Host, key: Mapping[str, Any], fresh: bool) -> None:
        self._host = host
        self._key = dict(key)
        stored = None if fresh else _stored(host)
        same = stored is not None and stored.get("key") == self._key
        self.done: dict[str, Any] = dict(stored["models"]) if stored and same else {}
        self.resumed = list(self.done)

    def keep(self, result: Mapping[str, Any]) -> None:
        """Note a model that was measured; a failed one is measured again when the burn test goes on."""
        if result["status"] == "ok":
            self.done[str(result["model"])] = result
        self._host.write(SESSION, json.dumps({"key": self._key, "models": self.done}))

    def end(self) -> None:
        """All models had their turn."""
        if self._host.exists(SESSION):
            os.unlink(self._host.path(SESSION))


@contextmanager
def alone(host: Host) -> Iterator[None]:
    """Only one burn test at a time: one whose ssh connection broke goes on by itself. Raises Refused."""
    os.makedirs(host.path(paths.STATE_DIR), exist_ok=True)
    with open(host.path(LOCK), "a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            raise Refused(
                f"A burn test runs on this host already (process {stream.read().strip() or 'unknown'}); "
                "one that was interrupted with Ctrl-C goes on here.",
                "Wait for its end, or stop that process there: what it has measured is kept.",
            ) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield


def _stored(host: Host) -> dict[str, Any] | None:
    try:
        stored = json.loads(host.read(SESSION) or "null")
    except ValueError:
        return None  # cut off by a full disk: nothing in it can be trusted
    return stored if isinstance(stored, dict) and isinstance(stored.get("models"), dict) else None


def run(
    host: Host, client: Lemond, bench: Bench, names: Sequence[str], method: Method, fresh: bool
) -> dict[str, Any]:
    """Measure *names* one after the other; afterwards the models that were loaded before are loaded again."""
    before = _loaded(client)
    told = environment(host, client)
    key = {"models": list(names), "method": method.public(), "serving": serving_digest(host), **told}
    session = Session(host, key, fresh)
    results = []
    for number, name in enumerate(names, 1):
        result = session.done.get(name)
        bench.place = f"{name} ({number} of {len(names)})"
        if result is None:
            wait_alive(client, lambda: True, _ANSWER_TIMEOUT)
            result = bench.model(name)
            session.keep(result)
        results.append(result)
    session.end()
    return {
        "environment": told,
        "method": method.public(),
        "models": results,
        "resumed": session.resumed,
        "restored": _restore(client, bench, before),
    }


def _restore(client: Lemond, bench: Bench, before: Sequence[str]) -> list[str]:
    """Load what was loaded before; what does not load is left out and shows in the report."""
    restored = []
    for name in before:
        try:
            if client.loaded(name) is None:
                bench.unload()
                bench.load(name)
            restored.append(name)
        except (Stopped, LemondUnreachable):
            continue
    return restored
