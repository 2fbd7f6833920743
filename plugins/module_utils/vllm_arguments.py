# SPDX-License-Identifier: Apache-2.0
"""vLLM's command line where vLLM itself is the daemon: the same as lemond would give it.

From lemond's vllm_server.cpp:411-493 and vllm_model_config.json (lemonade e385039). The API key is never
in it: vLLM reads VLLM_API_KEY.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from .module import Refused

# What the kit sets itself, and what would put a secret into every process list.
_OURS = ("--host", "--port", "--model", "--served-model-name", "--max-model-len", "--uds")
_SECRET = ("--api-key", "--hf-token")
_MEMORY = ("--kv-cache-memory-bytes", "--gpu-memory-utilization")
# Of the checkpoint's name: a family's parser of tool calls.
_FAMILIES = {r"Qwen3\.": "qwen3_coder", r"GLM-4\.7": "glm47"}
_PLAIN = re.compile(r"[A-Za-z0-9_./:=+@,-]+")


@dataclass(frozen=True)
class Served:
    """The one model: ``name`` as clients ask for it; ``checkpoint`` of the hub, or a folder on the host.

    ``ctx_size`` in tokens, -1 leaves it to the model. ``args`` are the user's, later ones count.
    """

    name: str
    checkpoint: str
    ctx_size: int = -1
    args: tuple[str, ...] = ()


def split(*lines: str | None) -> tuple[str, ...]:
    """Arguments of lines as a shell would read them. Raises Refused."""
    words: list[str] = []
    for line in lines:
        try:
            words += shlex.split(line or "")
        except ValueError as error:
            raise Refused(f"vLLM's arguments cannot be read: {error}.", "Close the quote.") from error
    return tuple(words)


def check(args: Sequence[str]) -> None:
    """Raises Refused for arguments that are not the user's to give."""
    for word in args:
        if option := secret(word):
            raise Refused(
                f"{option} among vLLM's arguments would show the secret to every user of the host (ps).",
                "Use lemonade_server_api_key or lemonade_server_hf_token.",
            )
        if option := _meant(word, _OURS):
            raise Refused(
                f"{option} among vLLM's arguments is set by the kit.",
                "Use lemonade_server_host, lemonade_server_port, lemonade_server_ctx_size, models_wanted.",
            )


def secret(word: str) -> str:
    """The option that carries a secret, where *word* is one or short for one; or ""."""
    return _meant(word, _SECRET)


def _meant(word: str, options: Sequence[str]) -> str:
    """Which of *options* the word is, or "". As vLLM reads it: underscores, and a beginning (argparse)."""
    given = word.partition("=")[0].replace("_", "-")
    if not given.startswith("--") or given == "--":
        return ""
    return next((option for option in options if option.startswith(given)), "")


def argv(model: Served, host: str, port: int) -> list[str]:
    """All arguments of the launcher. Raises Refused."""
    check(model.args)
    words = ["--model", model.checkpoint, "--served-model-name", model.name]
    words += ["--host", host.strip("[]"), "--port", str(port)]
    # HIP graphs are not for these GPUs (lemond: every architecture except gfx9).
    words += ["--enforce-eager", "--enable-prefix-caching"]
    if model.ctx_size > 0:
        words += ["--max-model-len", str(model.ctx_size)]
    if not any(_meant(word, _MEMORY) for word in model.args):
        # vLLM's share of all memory is too much where the CPU uses it as well (lemonade issue 1919).
        words += ["--kv-cache-memory-bytes", "4G"]
    for pattern, parser in _FAMILIES.items():
        if re.search(pattern, model.checkpoint):
            words += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    return [*words, *model.args]


def quoted(words: Sequence[str]) -> str:
    """*words* as systemd reads a command line (systemd.service(5)). Raises Refused for a line break."""
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    if re.search("[\n\r\0]", word):
        raise Refused("An argument of vLLM contains a line break.", "Give it as one line.")
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def option(unit: str, name: str) -> str:
    """The value of an option in a unit's command line, "" where there is none."""
    line = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    words = shlex.split(line[1].replace("%%", "%").replace("$$", "$")) if line else []
    return words[words.index(name) + 1] if name in words[:-1] else ""
