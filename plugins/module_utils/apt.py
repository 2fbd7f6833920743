# SPDX-License-Identifier: Apache-2.0
"""apt: a private state for planning, and the real thing for the run.

Planning must leave apt's lists and caches byte-identical, and must be able to ask "what would
be the candidate if the sources said …?". So it runs the host's own apt on a copy of the sources
with lists and caches in a temporary folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from . import apt_plan
from .apt_plan import Candidate, Simulation
from .host import CommandFailed, Completed, Host

LISTS = "/var/lib/apt/lists"
TRUSTED_PARTS = "/etc/apt/trusted.gpg.d"
# Somebody else's apt (unattended-upgrades, the apt-daily timers) is waited for, never killed;
# no lock file is ever removed.
LOCK_TIMEOUT = 600  # s
LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", LISTS + "/lock", "/var/cache/apt/archives/lock")

# DPkg::Lock::Timeout covers only dpkg's front-end lock, hence wait_for_locks as well.
_GET = (
    "apt-get",
    "-qy",
    "-o",
    f"DPkg::Lock::Timeout={LOCK_TIMEOUT}",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
    "-o",
    "Acquire::Retries=3",
)

_PRIVATE_CONF = """\
#clear APT::Update;
#clear AptCli::Hooks;
Dir::Etc::sourcelist "{0}/sources.list";
Dir::Etc::sourceparts "{0}/sources.list.d";
Dir::Etc::preferences "{0}/preferences";
Dir::Etc::preferencesparts "{0}/preferences.d";
Dir::Cache "{0}/cache";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Dir::Log "{0}/log";
Dir::State::lists "{1}";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
Acquire::IndexTargets::deb::CNF::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Debug::NoLocking "true";
"""


class PrivateApt:
    """The host's apt on a copy of its sources; leaves nothing behind.

    ``sources`` maps a path below /etc/apt (source or preference file) to its planned content,
    "" for a file that is to go; ``keys`` does so for keys, by path. ``skip_amd`` leaves AMD's
    repositories out, for questions about kernels that a broken AMD repository must not spoil.
    ``status`` is dpkg's status file as it will be (None: as it is). Until
    :meth:`update` the answers come from the host's own lists.
    """

    def __init__(
        self,
        host: Host,
        *,
        sources: dict[str, str] | None = None,
        keys: dict[str, bytes] | None = None,
        skip_amd: bool = True,
        status: str | None = None,
    ) -> None:
        self._host = host
        self._planned = sources or {}
        self._keys = keys or {}
        self._skip_amd = skip_amd
        self._status = status
        self._folder = ""

    def __enter__(self) -> PrivateApt:
        temporary = self._host.path("/tmp")  # noqa: S108  the folder itself is made by mkdtemp
        os.makedirs(temporary, exist_ok=True)
        self._real = tempfile.mkdtemp(prefix="lemonade-deploy-apt-", dir=temporary)
        try:
            self._fill()
        except BaseException:
            shutil.rmtree(self._real)
            raise
        return self

    def _fill(self) -> None:
        os.chmod(self._real, 0o755)  # noqa: S103  apt downloads as the user _apt
        self._folder = self._host.unroot(self._real)
        for name in ("sources.list.d", "preferences.d", "cache/archives/partial", "lists/partial", "log"):
            os.makedirs(os.path.join(self._real, name))
        self._more = self._copy_keys()
        if self._status is not None:
            self._more += f'Dir::State::status "{self._folder}/status";\n'
            with open(f"{self._real}/status", "w", encoding="utf-8", errors="surrogateescape") as stream:
                stream.write(self._status)
        self._copy(apt_plan.SOURCE_LIST, apt_plan.SOURCE_PARTS, apt_plan.is_source_name)
        self._copy(apt_plan.PREFERENCES, apt_plan.PREFERENCE_PARTS, apt_plan.is_preference_name)
        self._configure(LISTS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._real)

    def _copy(self, single: str, parts: str, is_part: Callable[[str], bool]) -> None:
        paths = {single, *(f"{parts}/{name}" for name in self._host.listdir(parts) if is_part(name))}
        paths.update(path for path in self._planned if path == single or os.path.dirname(path) == parts)
        for path in sorted(paths):
            text = self._planned.get(path, self._host.read(path) or "")
            if self._skip_amd and parts == apt_plan.SOURCE_PARTS:
                text = apt_plan.without_amd(path, text)
            for key in self._keys:
                text = text.replace(key, f"{self._folder}/keys/{os.path.basename(key)}")
            target = os.path.join(self._real, os.path.relpath(path, "/etc/apt"))
            with open(target, "w", encoding="utf-8", errors="surrogateescape") as stream:
                os.fchmod(stream.fileno(), 0o600)  # a source may hold a password, and apt itself is root
                stream.write(text)

    def _copy_keys(self) -> str:
        """Lay the planned keys down; apt's folder of trusted ones where one of them is among those."""
        folder = os.path.join(self._real, "keys")
        os.makedirs(folder)
        trusted = any(os.path.dirname(path) == TRUSTED_PARTS for path in self._keys)
        for name in self._host.listdir(TRUSTED_PARTS) if trusted else []:
            shutil.copy2(self._host.path(f"{TRUSTED_PARTS}/{name}"), folder)
        for path, data in self._keys.items():
            with open(os.path.join(folder, os.path.basename(path)), "wb") as stream:
                stream.write(data)
        return f'Dir::Etc::trustedparts "{self._folder}/keys";\n' if trusted else ""

    def _configure(self, lists: str) -> None:
        with open(os.path.join(self._real, "apt.conf"), "w", encoding="utf-8") as stream:
            stream.write(_PRIVATE_CONF.format(self._folder, lists) + self._more)

    def _run(self, program: str, *arguments: str, timeout: float = 600) -> Completed:
        argv = (program, "-c", f"{self._folder}/apt.conf", *arguments)
        return self._host.run(argv, check=False, timeout=timeout)

    def update(self) -> list[str]:
        """Refresh the private lists; what went wrong, as apt says it (empty: all is well)."""
        # The host's lists as a start: unchanged indexes are then not downloaded again.
        for name in self._host.listdir(LISTS):
            real = self._host.path(f"{LISTS}/{name}")
            if name != "lock" and os.path.isfile(real):
                shutil.copy2(real, os.path.join(self._real, "lists", name))
        self._configure(f"{self._folder}/lists")
        done = self._run("apt-get", "-q", "update", timeout=LOCK_TIMEOUT)
        if done.rc == 0:
            return []
        return apt_plan.errors(done.stderr) or [str(CommandFailed(done))]

    def candidates(self, packages: Iterable[str]) -> dict[str, Candidate]:
        """Those of *packages* that apt has a candidate for."""
        names = sorted(set(packages))
        if not names:
            return {}
        shown = apt_plan.parse_stanzas(self._run("apt-cache", "show", "--no-all-versions", *names).stdout)
        stanzas = {stanza["Package"]: stanza for stanza in shown if stanza["Package"] in names}
        wanted = [f"{name}={stanza['Version']}" for name, stanza in stanzas.items()]
        uris = self._uris(wanted)
        return {
            name: Candidate(
                name,
                stanza["Version"],
                uris.get(apt_plan.archive_name(name, stanza["Version"], stanza.get("Architecture", "")), ""),
                stanza.get("Depends", ""),
            )
            for name, stanza in stanzas.items()
        }

    def candidate(self, package: str) -> Candidate | None:
        """The version of *package* that apt would install, or None."""
        return self.candidates([package]).get(package)

    def versions(self, package: str) -> list[str]:
        """Every version of *package* that apt knows, the installed one included."""
        done = self._run("apt-cache", "show", "--all-versions", package)
        return [
            stanza["Version"]
            for stanza in apt_plan.parse_stanzas(done.stdout)
            if stanza["Package"] == package
        ]

    def _uris(self, wanted: Sequence[str]) -> dict[str, str]:
        if not wanted:
            return {}
        done = self._run("apt-get", "-q", "--print-uris", "download", *wanted)
        found = apt_plan.parse_uris(done.stdout)
        if done.rc != 0 and len(wanted) > 1:  # one that is in no repository spoils the whole call
            for one in wanted:
                found.update(self._uris([one]))
        return found

    def names(self, prefix: str) -> list[str]:
        """Names of real packages that begin with *prefix*."""
        return sorted(self._run("apt-cache", "pkgnames", prefix).stdout.split())

    def simulate_install(self, packages: Sequence[str]) -> Simulation:
        """What installing would do; raises CommandFailed where apt finds no way."""
        return self._simulate("install", "--allow-downgrades", *packages)

    def simulate_repair(self, packages: Sequence[str]) -> Simulation:
        """What ending half-done work and unpacking *packages* anew would do; raises CommandFailed."""
        return self._simulate("--fix-broken", "--reinstall", "install", *packages)

    def simulate_purge(self, packages: Sequence[str]) -> Simulation:
        """What purging would do; raises CommandFailed where apt finds no way."""
        return self._simulate("purge", *packages)

    def _simulate(self, *arguments: str) -> Simulation:
        done = self._run("apt-get", "-qy", "-s", *arguments)
        if done.rc != 0:
            raise CommandFailed(done)
        return apt_plan.parse_simulation(done.stdout)


def wait_for_locks(host: Host, timeout: float = LOCK_TIMEOUT) -> None:
    """Wait until nobody holds a lock of apt or dpkg. Raises TimeoutError after *timeout* seconds."""
    deadline = time.monotonic() + timeout
    for path in LOCKS:
        while _held(host.path(path)):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{path} is still held by another package manager after {timeout:.0f} s: see "
                    f"`fuser -v {path}`, wait for it or end it, then run again (never remove the file)"
                )
            time.sleep(1)  # fcntl locks can only be polled without blocking without end


def _held(real: str) -> bool:
    try:
        descriptor = os.open(real, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def apt_get(host: Host, *arguments: str, path: str = "", timeout: float = 3600) -> Completed:
    """The real apt-get, unattended; raises CommandFailed, TimeoutError (locks).

    ``path`` becomes the PATH of dpkg and the maintainer scripts ("" leaves apt's own).
    """
    wait_for_locks(host)
    options = ("-o", f"DPkg::Path={path}") if path else ()
    return host.run((*_GET, *options, *arguments), timeout=timeout)


def update(host: Host) -> list[str]:
    """The real ``apt-get update``: what went wrong, as apt says it (empty: all is well)."""
    wait_for_locks(host)
    done = host.run(
        (*_GET, "-o", "APT::Update::Error-Mode=any", "update"), check=False, timeout=LOCK_TIMEOUT * 2
    )
    if done.rc == 0:
        return []
    return apt_plan.errors(done.stderr) or [str(CommandFailed(done))]
