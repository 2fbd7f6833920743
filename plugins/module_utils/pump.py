# SPDX-License-Identifier: Apache-2.0
"""Run an iterator in a thread, a bounded number of items ahead of its reader.

Download, inflating and writing then overlap: hashing, zlib and file writes release the
interpreter's lock. Memory stays bounded by ``depth`` items a stage.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from queue import Empty, Queue
from typing import TypeVar

T = TypeVar("T")


class _End:
    """The last thing in the queue: how the source ended."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(source: Generator[T, None, None], depth: int) -> Generator[T, None, None]:
    """Yield what *source* yields; its exception is raised here; closing this closes it."""
    queue: Queue[T | _End] = Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_fill, args=(source, queue, stop), daemon=True)
    thread.start()
    try:
        yield from _drain(queue)
    finally:
        stop.set()
        while thread.is_alive():
            # Make room, so that a source that waits in put() sees the stop.
            try:
                queue.get(timeout=0.05)
            except Empty:
                continue


def _fill(source: Generator[T, None, None], queue: Queue[T | _End], stop: threading.Event) -> None:
    error: BaseException | None = None
    try:
        for item in source:
            queue.put(item)
            if stop.is_set():
                break
        source.close()
    except BaseException as raised:
        error = raised
    queue.put(_End(error))


def _drain(queue: Queue[T | _End]) -> Iterator[T]:
    while True:
        item = queue.get()
        if isinstance(item, _End):
            if item.error is not None:
                raise item.error
            return
        yield item
