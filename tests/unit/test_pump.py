# SPDX-License-Identifier: Apache-2.0
"""The threads between two stages: order, errors, and an early end."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from lemonade_deploy.domain.pump import ahead


def numbers(end: int, closed: list[str], error: Exception | None = None) -> Generator[int, None, None]:
    try:
        yield from range(end)
        if error:
            raise error
    finally:
        closed.append(threading.current_thread().name)


def test_everything_arrives_in_order() -> None:
    assert list(ahead(numbers(1000, []), 3)) == list(range(1000))


def test_an_error_of_the_source_arrives_after_what_came_before_it() -> None:
    got = []
    with pytest.raises(ValueError, match="broken"):
        for item in ahead(numbers(5, [], ValueError("broken")), 2):
            got.append(item)
    assert got == [0, 1, 2, 3, 4]


def test_a_reader_that_stops_ends_the_source_and_its_thread() -> None:
    closed: list[str] = []
    before = threading.active_count()
    stream = ahead(numbers(10**9, closed), 2)
    assert next(stream) == 0
    stream.close()
    assert len(closed) == 1
    assert threading.active_count() == before


def test_no_more_than_the_depth_is_made_in_advance() -> None:
    made = []

    def source() -> Generator[int, None, None]:
        for number in range(100):
            made.append(number)
            yield number

    stream = ahead(source(), 4)
    for _ in range(3):
        next(stream)
    # 3 taken, 4 waiting, 1 in the hand of the source, 1 being made.
    assert len(made) <= 9
    stream.close()
