# SPDX-License-Identifier: Apache-2.0
"""A chat completion through lemond, and what must be true of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .lemond_api import Answer, Lemond, LemondUnreachable
from .module import Refused

MIN_TOKENS = 256  # a reasoning model spends its first tokens on thinking


@dataclass(frozen=True)
class Inference:
    """The answer. ``seconds`` is wall clock: /v1/stats says 0.0 tokens/s for an unstreamed reply."""

    model: str
    content: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float

    def public(self) -> dict[str, Any]:
        """In the shape of ``--json``."""
        return {
            "model": self.model,
            "content": self.content,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "load_seconds": None,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.completion_tokens / self.seconds, 2) if self.seconds else None,
        }


def full_name(client: Lemond, model: str) -> str:
    """The name a completion must use: for an own registration only the one with ``user.`` works.

    lemond lists it without (lemonade issues 2610, 2649). Raises Refused where it knows no such model.
    """
    if not model:
        raise Refused("There is no model to ask.", "Set models_wanted, or verify_model.")
    entry = client.model(model)
    if entry is None:
        raise Refused(
            f"lemond has no model {model}.",
            f"It has: {', '.join(client.model_names()[:8]) or 'none at all'}.",
        )
    own = "custom" in (entry.get("labels") or [])
    return f"user.{model}" if own and not model.startswith("user.") else model


def served_name(client: Lemond, model: str) -> str:
    """The name under which vLLM as the daemon serves *model*. Raises Refused where it serves another."""
    answer = client.get("/v1/models")
    if not answer.ok:
        raise Refused(
            f"vLLM does not tell its models (GET /v1/models: {answer.error}).",
            "See `journalctl -u lemonade-vllm -n 50`.",
        )
    served = [str(entry.get("id", "")) for entry in answer.entries("data")]
    for name in (model, f"user.{model}"):
        if model and name in served:
            return name
    raise Refused(
        f"vLLM serves {', '.join(served) or 'nothing'}, not {model or 'a model that has no name'}.",
        "It serves the first of models_wanted; verify_model can only be that one.",
    )


def check_key(endpoint: str, api_key: str) -> None:
    """Raises Refused where a key is set and a request without it is answered."""
    if not api_key:
        return
    # Empty: who demands no key finds fault with the request, and no model is asked.
    status = Lemond(endpoint).post("/v1/chat/completions", {}).status
    if status not in (401, 403):
        raise Refused(
            f"An API key is set, and {endpoint} does not demand it (a completion without it: HTTP {status}).",
            "See `systemctl cat lemond lemonade-vllm` for a drop-in that takes the environment away.",
        )


@contextmanager
def answered(unit: str) -> Iterator[None]:
    """Requests to the daemon of *unit*. Raises Refused where nobody answers."""
    try:
        yield
    except LemondUnreachable as error:
        raise Refused(
            f"No answer of the daemon: {error}.",
            f"See `systemctl status {unit}` and `journalctl -u {unit} -n 50`.",
        ) from error


def ask(
    client: Lemond, model: str, prompt: str, max_tokens: int, timeout: float, unit: str = "lemond.service"
) -> Inference:
    """One greedy completion; ``timeout`` in seconds. Raises Refused where it is none to be content with.

    ``unit`` is whose log may say why.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": False,
    }
    with answered(unit):
        answer = client.post("/v1/chat/completions", body, timeout)
    return judge(model, answer, f"See `journalctl -u {unit} -n 200`.")


def judge(model: str, answer: Answer, remedy: str) -> Inference:
    """The completion in *answer*; raises Refused naming the first thing that is wrong with it."""
    if not answer.ok or not isinstance(answer.body, dict):
        raise Refused(
            f"{model} does not answer (HTTP {answer.status}): {answer.error}",
            remedy,
        )
    choice = next(iter(answer.entries("choices")), {})
    message, usage = _object(choice.get("message")), _object(answer.field("usage"))
    content = message.get("content") or message.get("reasoning") or message.get("reasoning_content") or ""
    inference = Inference(
        str(answer.body.get("model", "")),
        str(content),
        str(choice.get("finish_reason") or ""),
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        answer.seconds,
    )
    wrong = _wrong(model, inference)
    if wrong:
        raise Refused(f"{model} answers, but {wrong}.", remedy)
    return inference


def _object(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _count(found: Any) -> int:
    """Tokens; what is no number counts as none."""
    return found if isinstance(found, int) else 0


def _wrong(model: str, inference: Inference) -> str:
    if inference.model.removeprefix("user.") != model.removeprefix("user."):
        return f"the answer comes from {inference.model!r}"
    if not inference.content.strip():
        return "neither content nor reasoning holds any text"
    if not inference.finish_reason:
        return "finish_reason is missing"
    if inference.completion_tokens <= 0:
        return f"usage counts {inference.completion_tokens} completion tokens"
    return ""
