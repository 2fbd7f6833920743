# SPDX-License-Identifier: Apache-2.0
"""zstd frames to their content, by the system's own `zstd`, as a stream in bounded memory.

Python has no zstd before 3.14; Ubuntu's initramfs-tools bring the program to every host.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Generator
from contextlib import closing
from typing import IO, cast

from .gunzip import CHUNK, ArchiveError

PROGRAM = "zstd"


def available() -> bool:
    """Whether this host can unpack zstd."""
    return shutil.which(PROGRAM) is not None


def unzstd(frames: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """The content of *frames*; an exception of theirs is raised here. Closing this closes them.

    Raises ArchiveError for what is no zstd.
    """
    process = subprocess.Popen(
        [PROGRAM, "-dcq"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=CHUNK,
        pipesize=CHUNK,  # a pipe's usual 64 KiB would mean 16 times as many switches between processes
    )
    stdout, stderr = cast(IO[bytes], process.stdout), cast(IO[bytes], process.stderr)
    failed: list[BaseException] = []
    feeder = threading.Thread(target=_feed, args=(frames, process, failed), daemon=True)
    feeder.start()
    try:
        while data := stdout.read(CHUNK):
            yield data
        feeder.join()
        said = stderr.read().decode("utf-8", "replace").strip()
        if failed:
            raise failed[0]
        if process.wait():
            raise ArchiveError(f"not sound zstd: {said}")
    finally:
        process.kill()
        process.wait()
        feeder.join()
        stdout.close()
        stderr.close()


def _feed(
    frames: Generator[bytes, None, None], process: subprocess.Popen[bytes], failed: list[BaseException]
) -> None:
    stdin = cast(IO[bytes], process.stdin)
    try:
        with closing(frames), stdin:
            for frame in frames:
                stdin.write(frame)
    except BrokenPipeError:
        return  # zstd ended first: its exit code says why, or the reader gave up
    except BaseException as error:
        failed.append(error)
        process.kill()  # what it unpacked so far is no whole stream
