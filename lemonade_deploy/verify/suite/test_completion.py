# SPDX-License-Identifier: Apache-2.0
"""The model answers: plain, streamed, and twice the same."""

from __future__ import annotations

import json
from typing import Any

from lemonade_deploy.verify.asking import Api, Reply


def text_of(message: dict[str, Any]) -> str:
    return str(message.get("content") or message.get("reasoning") or message.get("reasoning_content") or "")


def test_completion(answer: Reply, model: str, record_property: Any) -> None:
    assert answer.status == 200, answer.text
    body = answer.json
    assert "error" not in body, body  # an error can come inside HTTP 200
    choice = body["choices"][0]
    assert text_of(choice["message"]).strip()
    assert choice["finish_reason"] in ("stop", "length")
    assert body["usage"]["completion_tokens"] > 0
    assert body["model"] == model
    record_property("model", model)
    record_property("content", text_of(choice["message"]))
    record_property("finish_reason", choice["finish_reason"])
    record_property("prompt_tokens", body["usage"]["prompt_tokens"])
    record_property("completion_tokens", body["usage"]["completion_tokens"])
    record_property("seconds", round(answer.seconds, 3))


def test_streamed_completion(api: Api, model: str, answer: Reply) -> None:
    assert answer.status == 200, "no completion at all"
    reply = api.chat(model, stream=True)
    assert reply.status == 200, reply.text
    events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    assert events, reply.text
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert not [chunk for chunk in chunks if "error" in chunk]
    text = "".join(text_of(chunk["choices"][0]["delta"]) for chunk in chunks if chunk["choices"])
    assert text.strip()
    assert any(chunk["choices"][0].get("finish_reason") for chunk in chunks if chunk["choices"])


def test_greedy_answers_are_the_same(api: Api, model: str, answer: Reply, record_property: Any) -> None:
    """A batch shared with other requests may round differently; alone, greedy means repeatable."""
    assert answer.status == 200, "no completion at all"
    # Others may have been at work during the first answer, too: nobody looked. So two that were watched.
    texts, busy = [], api.busy()
    for _turn in range(2):
        reply = api.chat(model)
        assert reply.status == 200, reply.text
        texts.append(text_of(reply.json["choices"][0]["message"]))
        busy = busy or api.busy()
    if texts[0] != texts[1] and busy:
        record_property("warning", f"not repeatable while other requests run: {texts[0]!r}, {texts[1]!r}")
    else:
        assert texts[0] == texts[1]
