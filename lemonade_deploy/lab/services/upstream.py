# SPDX-License-Identifier: Apache-2.0
"""The packages that are no simulation: fetched from Debian by apt, with apt's own checks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..root import SUITE, mirror
from ..shell import LabError, run

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def present(folder: Path, names: Iterable[str]) -> list[Path]:
    """The .deb files of *names* that lie in *folder*, at most one a name."""
    found = [sorted(folder.glob(f"{name}_*.deb")) for name in names]
    return [paths[-1] for paths in found if paths]


def fetch(folder: Path, names: Sequence[str], suite: str = SUITE) -> list[Path]:
    """The .deb files of Debian's packages *names*, downloaded once and then kept in *folder*.

    They are fetched all or none, so that they fit each other. apt works with a state of its own,
    so the machine's stays as it is. Raises LabError where the mirror cannot be reached or lacks one.
    """
    if len(present(folder, names)) < len(names):
        if not KEYRING.exists():
            raise LabError(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
        with tempfile.TemporaryDirectory(prefix="lemonade-lab-apt-") as scratch:
            options = _private_apt(Path(scratch), suite)
            fresh = Path(scratch) / "fresh"
            fresh.mkdir()
            run(["apt-get", *options, "update"], timeout=300)
            run(["env", "-C", fresh, "apt-get", *options, "download", *names], timeout=600)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(fresh, folder)
    return present(folder, names)


def _private_apt(scratch: Path, suite: str) -> list[str]:
    for name in ("lists/partial", "archives/partial", "parts", "keys"):
        (scratch / name).mkdir(parents=True)
    (scratch / "status").touch()
    url = os.environ.get("LEMONADE_LAB_MIRROR") or mirror()
    (scratch / "sources.list").write_text(f"deb [signed-by={KEYRING}] {url} {suite} main\n", "utf-8")
    settings = {
        "Dir::State": scratch,
        "Dir::State::lists": scratch / "lists",
        "Dir::State::status": scratch / "status",
        "Dir::Cache": scratch,
        "Dir::Cache::archives": scratch / "archives",
        "Dir::Etc::sourcelist": scratch / "sources.list",
        "Dir::Etc::sourceparts": scratch / "parts",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": scratch / "parts",
        # A mirror's snapshot of a testing suite may be past its Valid-Until.
        "Acquire::Check-Valid-Until": "false",
        "Acquire::Languages": "none",
        # The download as root into the cache folder, which user _apt may not enter.
        "APT::Sandbox::User": "root",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")] + ["-qq"]
