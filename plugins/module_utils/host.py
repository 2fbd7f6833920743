# SPDX-License-Identifier: Apache-2.0
"""A host seen through its files and its commands, relative to a root folder.

Everything the domain reads goes through :class:`Host`, so a fixture tree under
``tests/`` is read exactly like a real box.
"""

from __future__ import annotations

import errno
import glob as _glob
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

# The one place where the running kernel's release is read (same text as uname -r).
# A file, so that a test host can bind another one over it.
OSRELEASE = "/proc/sys/kernel/osrelease"

# Locale and prompts that would change what a tool prints or make it wait.
QUIET_ENV = {
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    # needrestart must neither ask nor restart services in the middle of our run.
    "NEEDRESTART_SUSPEND": "1",
    "NEEDRESTART_MODE": "l",
}


class Completed(NamedTuple):
    """What a command did: its argv, exit code and decoded output."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str


class CommandFailed(Exception):
    """A command ended with a non-zero code; the message carries its last lines."""

    def __init__(self, done: Completed) -> None:
        self.done = done
        tail = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-12:])
        super().__init__(f"`{' '.join(done.argv)}` ended with code {done.rc}: {tail}")


_MOST_LINKS = 40  # as the kernel's


def _ours(real: str) -> bool:
    """Whether root (or who runs this) owns a file, link or folder."""
    return os.lstat(real).st_uid in (0, os.geteuid())


Runner = Callable[[Sequence[str], Mapping[str, str], "str | None", "float | None"], Completed]


def run_command(
    argv: Sequence[str], env: Mapping[str, str], stdin: str | None, timeout: float | None
) -> Completed:
    """Run *argv* without a shell. ``timeout`` is in seconds; a missing program gives rc 127."""
    try:
        done = subprocess.run(
            list(argv),
            env={**os.environ, **QUIET_ENV, **env},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        return Completed(tuple(argv), 127, "", f"{argv[0]}: command not found")
    except subprocess.TimeoutExpired:
        return Completed(tuple(argv), 124, "", f"no end after {timeout:.0f} s")
    return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)


class Host:
    """Files and commands of one host. All paths are absolute paths *on that host*."""

    def __init__(self, root: str = "/", runner: Runner = run_command) -> None:
        self.root = os.path.abspath(root)
        self._runner = runner

    def path(self, path: str) -> str:
        """The path to open on this machine for *path* on the host."""
        return path if self.root == "/" else os.path.join(self.root, path.lstrip("/"))

    def unroot(self, real: str) -> str:
        """The host's own name for a path that :meth:`path` gave."""
        return real if self.root == "/" else "/" + os.path.relpath(real, self.root)

    def read(self, path: str) -> str | None:
        """Text of a file, or None where there is none (or it cannot be read)."""
        try:
            with open(self.path(path), encoding="utf-8", errors="surrogateescape") as stream:
                return stream.read()
        except OSError:
            return None

    def read_bytes(self, path: str) -> bytes | None:
        """Bytes of a file, or None where there is none (or it cannot be read)."""
        try:
            with open(self.path(path), "rb") as stream:
                return stream.read()
        except OSError:
            return None

    def text(self, path: str) -> str | None:
        """Text of a file with its line ends as they are, for what is written back; None as :meth:`read`."""
        data = self.read_bytes(path)
        return None if data is None else data.decode("utf-8", "surrogateescape")

    def value(self, path: str) -> str | None:
        """A one-value file (sysfs, procfs) without its newline, or None."""
        text = self.read(path)
        return None if text is None else text.strip()

    def exists(self, path: str) -> bool:
        """Whether *path* is there, a dangling link included."""
        return os.path.lexists(self.path(path))

    def is_dir(self, path: str) -> bool:
        """Whether *path* is a folder (links followed)."""
        return os.path.isdir(self.path(path))

    def readlink(self, path: str) -> str | None:
        """Target of a symbolic link as written, or None."""
        try:
            return os.readlink(self.path(path))
        except OSError:
            return None

    def listdir(self, path: str) -> list[str]:
        """Sorted names in a folder; empty where there is none."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def glob(self, pattern: str) -> list[str]:
        """Sorted host paths that match *pattern*."""
        return sorted(self.unroot(p) for p in _glob.glob(self.path(pattern)))

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Run a command on the host; with ``check`` a non-zero code raises CommandFailed."""
        done = self._runner(argv, env or {}, stdin, timeout)
        if check and done.rc != 0:
            raise CommandFailed(done)
        return done

    def running_kernel(self) -> str:
        """Release of the running kernel, read from :data:`OSRELEASE`."""
        return self.value(OSRELEASE) or ""

    def os_release(self) -> dict[str, str]:
        """/etc/os-release as a dictionary (ID, VERSION_CODENAME, …)."""
        text = self.read("/etc/os-release") or ""
        pairs = re.findall(r'^([A-Z_0-9]+)=("?)(.*?)\2\s*$', text, re.MULTILINE)
        return {key: value for key, _quote, value in pairs}

    def _target(self, path: str) -> str:
        """The file to open for writing *path*, trusted links resolved. Raises OSError (a loop)."""
        for _hop in range(_MOST_LINKS):
            real = self.path(path)
            if not (os.path.islink(real) and _ours(real) and _ours(os.path.dirname(real))):
                return real
            path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(real)))
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def give(self, path: str, uid: int, gid: int) -> None:
        """Give a folder to a user; NotADirectoryError for a link that :meth:`write` would not follow."""
        handle = os.open(self._target(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.fchown(handle, uid, gid)
        finally:
            os.close(handle)

    def write(
        self,
        path: str,
        content: str | bytes,
        mode: int | None = None,
        owner: tuple[int, int] | None = None,
    ) -> None:
        """Replace a file atomically (temporary file, fsync, rename); makes its folder.

        Without *mode* a file that is there keeps its mode and owner (it may hold a secret), a new one
        gets 0644. A link of root's in a folder of root's is followed; any other one is replaced, as
        whoever made it must not choose what is written.
        """
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        real = self._target(path)
        if mode is None:
            mode = 0o644
            if os.path.isfile(real) and not os.path.islink(real):
                status = os.stat(real)
                mode, owner = stat.S_IMODE(status.st_mode), owner or (status.st_uid, status.st_gid)
        os.makedirs(os.path.dirname(real), exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(real), prefix=".lemonade-deploy-")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, mode)
            if owner is not None:
                os.chown(temporary, *owner)
            os.replace(temporary, real)
        except BaseException:
            os.unlink(temporary)
            raise
