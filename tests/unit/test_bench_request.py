# SPDX-License-Identifier: Apache-2.0
"""One request of the burn test: its stopwatch, its rates, and what is no answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from bench_server import KEY, Server, events, serving

from lemonade_deploy.domain import bench_request
from lemonade_deploy.domain.bench_request import RequestFailed, Sample, Target


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def target(server: Server) -> Target:
    return Target(f"http://127.0.0.1:{server.server_port}", "A", 20, KEY, timeout=5)


def test_the_stopwatch(server: Server) -> None:
    looks = itertools.count()
    sample = bench_request.measure(target(server), 1, lambda: next(looks))
    assert (sample.prompt_tokens, sample.completion_tokens, sample.finish_reason) == (7, 3, "length")
    # Each look at the clock is a second later: one at the start, one after each of five events, one at
    # the first token and one at the end. The role's event holds no text: the token is the second event.
    assert (sample.ttft, sample.seconds) == (2, 7)
    assert sample.tokens_per_second == 3 / 7


def test_rates_by_the_definition() -> None:
    sample = Sample(0.5, 2.5, 7, 5, "stop")
    assert sample.tokens_per_second == 2
    assert sample.decode_tokens_per_second == 2
    assert Sample(0.5, 0.5, 7, 1, "stop").decode_tokens_per_second is None


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (events("text", tokens=None), "without usage"),
        (events(tokens=3), "no text"),
        ([b'data: {"error": {"message": "inside 200"}}\n\n'], "inside 200"),
        ([b'{"error": {"message": "no stream at all"}}'], "no stream at all"),
        ([b"data: {broken\n\n"], "broke off"),
        ([], "no text"),
        ([b"data: null\n\n"], "no object"),
        ([b"data: [1]\n\n"], "no object"),
        ([b'data: {"choices": [null, 1]}\n\n'], "no text"),
        ([b'data: {"choices": {"delta": 1}}\n\n'], "no text"),
        ([b'data: {"choices": [{"delta": "x"}]}\n\n'], "no text"),
        ([*events("x", tokens=None)[:-1], b'data: {"usage": {"completion_tokens": "many"}}\n\n'], "usage"),
        ([*events("x", tokens=None)[:-1], b'data: {"usage": [1]}\n\n'], "usage"),
    ],
)
def test_what_is_no_answer(server: Server, stream: list[bytes], why: str) -> None:
    server.stream = stream
    with pytest.raises(RequestFailed, match=why):
        bench_request.measure(target(server), 1)


def test_an_empty_error_beside_a_good_answer_is_none(server: Server) -> None:
    server.stream = [line.replace(b'{"choices', b'{"error": null, "choices') for line in server.stream]
    assert bench_request.measure(target(server), 1).completion_tokens == 3


def test_an_answer_that_trickles_ends() -> None:
    seconds = iter(range(0, 10**6, 600))
    lines = (b'data: {"choices": [{"delta": {"content": "x"}}]}\n' for _turn in range(1000))
    with pytest.raises(RequestFailed, match="not complete after 3600 s"):
        bench_request.read(lines, lambda: next(seconds))


def test_nobody_listens() -> None:
    with pytest.raises(RequestFailed, match="broke off"):
        bench_request.measure(Target("http://127.0.0.1:1", "A", 1), 1)
