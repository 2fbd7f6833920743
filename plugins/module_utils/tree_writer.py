# SPDX-License-Identifier: Apache-2.0
"""Write a tree: large files here, the tens of thousands of small ones through the system's own tar.

For a small file Python takes longer than the kernel, and only one thread of it runs at a time; for a
large one the pipe to tar would be one copy too many. tar never sees the archive that came over the
network. It gets a new one, with headers made here from members that were checked, so nothing can
mean one thing to the check and another to tar.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import IO, cast

from .pump import Behind

BLOCK = 512
LARGE = 1 << 20  # bytes from which a file is written here
QUEUE = 2  # pieces of large files that wait to be written
BATCH = 256 << 10  # bytes that are sent at once; a pipe holds four times as much
PIECES = 900  # writev takes 1024
PIPE = 1 << 20  # the most that a pipe may hold without a privilege
RECORD = 128  # blocks that tar reads at once: its usual 20 mean six times as many reads
_HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s8s247x")
_MAGIC = b"ustar  \0"  # GNU's form: long names as members of their own, large numbers in binary
_LONG = b"././@LongLink"
_OCTAL_MAX = 8**11


class TreeWriter:
    """A sink that writes below *root*, a folder only this process knows.

    *held*: descriptors that tar keeps open, such as a lock: a tar that outlives a killed run holds it
    until it has ended. Use as a context manager; what was written counts after close().
    """

    def __init__(self, root: str, held: Sequence[int] = ()) -> None:
        self._root, self._held = root, tuple(held)
        self._tar: _Tar | None = None
        self._behind: Behind | None = None
        self._open: set[int] = set()  # handles of large files that are not finished
        self._pieces: list[bytes | memoryview] = []
        self._size = 0

    def __enter__(self) -> TreeWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        """After an error that is not the disk's what was handed over is still written, for a later run."""
        if kind and not issubclass(kind, OSError):
            with contextlib.suppress(OSError):
                self.flush()
                if self._tar:
                    self._tar.end()
        if self._tar:
            self._tar.kill()
        if self._behind:
            with contextlib.suppress(OSError):  # put() or close() has raised it, or something else is wrong
                self._behind.close()
        for handle in self._open:
            os.close(handle)

    def folder(self, path: str, mode: int) -> None:
        """mkdir, then the exact mode (umask does not count)."""
        real = f"{self._root}/{path}"
        if not os.path.isdir(real):
            os.mkdir(real)
        os.chmod(real, mode)

    def replaces(self, path: str) -> None:
        """Remove what an earlier member has made, or will: tar may be behind."""
        self.close()
        os.unlink(f"{self._root}/{path}")

    def file(self, path: str, mode: int, size: int, mtime: int, content: Iterator[memoryview]) -> None:
        """A new file."""
        if size >= LARGE:
            self.flush()  # a run that is killed meanwhile goes on with the first file that is missing
            self._write(f"{self._root}/{path}", mode, mtime, content)
            return
        self._send(header(path, b"0", mode, size, mtime))
        for piece in content:
            self._send(piece)
        if size % BLOCK:
            self._send(bytes(-size % BLOCK))

    def rest(self, path: str, mode: int, mtime: int, done: int, content: Iterator[memoryview]) -> None:
        """Go on with a file of which *done* bytes are there."""
        handle = os.open(f"{self._root}/{path}", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.ftruncate(handle, done)
        os.lseek(handle, done, os.SEEK_SET)
        self._fill(handle, mode, mtime, content)

    def _write(self, real: str, mode: int, mtime: int, content: Iterator[memoryview]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fill(os.open(real, flags, 0o600), mode, mtime, content)

    def _fill(self, handle: int, mode: int, mtime: int, content: Iterator[memoryview]) -> None:
        self._open.add(handle)
        if self._behind is None:
            self._behind = Behind(QUEUE)
        for piece in content:
            self._behind.put(partial(_write_all, handle, piece))
        self._behind.put(partial(self._finish, handle, mode, mtime))

    def _finish(self, handle: int, mode: int, mtime: int) -> None:
        os.fchmod(handle, mode)
        os.utime(handle, (mtime, mtime))
        self._open.remove(handle)
        os.close(handle)

    def symlink(self, path: str, target: str) -> None:
        """Make the link."""
        os.symlink(target, f"{self._root}/{path}")

    def hardlink(self, path: str, target: str) -> None:
        """Another name of the file *target*."""
        self._send(header(path, b"1", 0o644, 0, 0, target))

    def close(self) -> None:
        """Wait until everything is written. Raises OSError."""
        if self._behind:
            behind, self._behind = self._behind, None
            behind.close()
        if self._tar or self._pieces:
            self._send(bytes(2 * BLOCK))
            self._flush()
            tar, self._tar = cast(_Tar, self._tar), None
            tar.close()

    def flush(self) -> None:
        """Hand over to tar what was held back. Raises OSError."""
        if self._pieces:
            self._flush()

    def _send(self, piece: bytes | memoryview) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size >= BATCH or len(self._pieces) >= PIECES:
            self._flush()

    def _flush(self) -> None:
        if self._tar is None:
            self._tar = _Tar(self._root, self._held)
        self._tar.write(self._pieces)
        self._pieces, self._size = [], 0


def _write_all(handle: int, piece: bytes | memoryview) -> None:
    left = memoryview(piece)
    while left:
        left = left[os.write(handle, left) :]


class _Tar:
    """The process. What it says on stderr is an error: it would go on with the next file."""

    def __init__(self, root: str, held: tuple[int, ...]) -> None:
        argv = ["tar", "--extract", f"--blocking-factor={RECORD}", "--preserve-permissions"]
        argv += ["--no-same-owner", "--warning=none", f"--directory={root}"]
        self._said: list[str] = []
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # Neither the user's TAR_OPTIONS nor a language other than that of _error().
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            pass_fds=held,
            bufsize=0,
            pipesize=PIPE,
        )
        self._stdin = cast(IO[bytes], self._process.stdin)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in cast(IO[bytes], self._process.stderr):
            self._said.append(line.decode("utf-8", "replace").strip())
            self._process.kill()

    def write(self, pieces: list[bytes | memoryview]) -> None:
        handle = self._stdin.fileno()
        try:
            done = os.writev(handle, pieces)
            for piece in pieces:
                if done < len(piece):
                    _write_all(handle, memoryview(piece)[done:])
                done = max(0, done - len(piece))
        except BrokenPipeError:
            raise self._error() from None

    def end(self) -> None:
        """No more comes; wait until it has written what it got."""
        self._stdin.close()
        self._process.wait()

    def close(self) -> None:
        self._stdin.close()
        status = self._process.wait()
        self._listener.join()
        cast(IO[bytes], self._process.stderr).close()
        if status or self._said:
            raise self._error()

    def kill(self) -> None:
        """End it; fine where it has ended."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        self._stdin.close()
        cast(IO[bytes], self._process.stderr).close()

    def _error(self) -> OSError:
        self._process.wait()
        self._listener.join()
        said = self._said[0] if self._said else f"tar ended with {self._process.returncode}"
        reason = said.rpartition(": ")[2]
        number = next((code for code in errno.errorcode if os.strerror(code) == reason), errno.EIO)
        if reason.startswith("Wrote only"):  # tar tried once; a disk that fills up takes the first part
            number = errno.ENOSPC
        return OSError(number, said)


def header(path: str, kind: bytes, mode: int, size: int, mtime: int, target: str = "") -> bytes:
    """One member's header (with those that long names need before it)."""
    name, link = (text.encode("utf-8", "surrogateescape") for text in (path, target))
    before = b""
    if len(name) > 100:
        before = _long(b"L", name)
    if len(link) > 100:
        before += _long(b"K", link)
    return before + _block(name[:100], kind, mode, size, max(0, mtime), link[:100])


def _long(kind: bytes, text: bytes) -> bytes:
    size = len(text) + 1
    return _block(_LONG, kind, 0, size, 0, b"") + text + bytes(1 + -size % BLOCK)


def _block(name: bytes, kind: bytes, mode: int, size: int, mtime: int, link: bytes) -> bytes:
    fields = (name, b"%07o" % mode, b"0000000", b"0000000", _number(size), _number(mtime))
    block = _HEADER.pack(*fields, b"        ", kind, link, _MAGIC)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _number(value: int) -> bytes:
    if value < _OCTAL_MAX:
        return b"%011o" % value
    return b"\x80" + value.to_bytes(11, "big")
