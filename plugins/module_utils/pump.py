# SPDX-License-Identifier: Apache-2.0
"""Run an iterator in a thread, a bounded number of items ahead of its reader; or jobs behind their giver.

Download, inflating and writing then overlap: hashing, zlib and file writes release the
interpreter's lock. Memory stays bounded by ``depth`` items a stage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
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


class Behind:
    """Jobs done in their order by one thread, at most *depth* of them waiting.

    The first error ends the work; put() and close() raise it, jobs after it are dropped.
    """

    def __init__(self, depth: int) -> None:
        self._queue: Queue[Callable[[], None] | None] = Queue(depth)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Hand over a job; waits while the queue is full."""
        if self._error is not None:
            raise self._error
        self._queue.put(job)

    def close(self) -> None:
        """Wait for what was put; end the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            if self._error is None:
                try:
                    job()
                except BaseException as raised:
                    self._error = raised
