# SPDX-License-Identifier: Apache-2.0
"""The packages that are no simulation: fetched from Debian by apt, with apt's own checks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .. import catalog
from ..root import SUITE, mirror
from ..shell import LabError, run

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def fetch(folder: Path) -> list[Path]:
    """The .deb files of :data:`catalog.REAL_PACKAGES`, downloaded once and then kept in *folder*.

    apt works with a state of its own, so the machine's stays as it is. Raises LabError where the
    mirror cannot be reached or has no such package.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in catalog.REAL_PACKAGES if not list(folder.glob(f"{name}_*.deb"))]
    if missing:
        if not KEYRING.exists():
            raise LabError(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
        with tempfile.TemporaryDirectory(prefix="lemonade-lab-apt-") as scratch:
            options = _private_apt(Path(scratch))
            run(["apt-get", *options, "update"], timeout=300)
            run(["env", "-C", folder, "apt-get", *options, "download", *missing], timeout=300)
    return sorted(path for name in catalog.REAL_PACKAGES for path in folder.glob(f"{name}_*.deb"))


def _private_apt(scratch: Path) -> list[str]:
    for name in ("lists/partial", "archives/partial", "parts", "keys"):
        (scratch / name).mkdir(parents=True)
    (scratch / "status").touch()
    url = os.environ.get("LEMONADE_LAB_MIRROR") or mirror()
    (scratch / "sources.list").write_text(f"deb [signed-by={KEYRING}] {url} {SUITE} main\n", "utf-8")
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
