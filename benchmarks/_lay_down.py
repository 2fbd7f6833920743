# SPDX-License-Identifier: Apache-2.0
"""What benchmarks.bundle measures: the module's work in a process that imports nothing else.

usage: python -m benchmarks._lay_down ROOT URL LOCK.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lemonade_deploy.domain import bundle, bundle_check
from lemonade_deploy.domain.bundle_install import Order, Stats
from lemonade_deploy.domain.bundle_plan import Wanted, plan_bundle
from lemonade_deploy.domain.bundle_sources import Place
from lemonade_deploy.domain.change import Change, carry_out
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.lock import parse

TOKEN = "benchmark"  # noqa: S105
CHECKING = "/run/checking"


def child(root: str, url: str, lock_file: str) -> None:
    """One run of what the module does below *root*; prints times and the peak before the static checks."""
    (release,) = parse(json.loads(Path(lock_file).read_text())).values()
    peak: list[int] = []

    def check(host: Host, tree: str, family: str) -> None:
        # In KiB. Not ru_maxrss: that begins with the size of who started this process.
        peak.append(int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]))
        host.write(CHECKING, "")  # who watches the memory of this process and its children stops here
        bundle_check.check(host, tree, family)

    host, stats = Host(root), Stats()
    wanted = Wanted(Order(release, url, check=check, places=(Place("depot", url, TOKEN),)))

    def plan() -> list[Change]:
        return plan_bundle(bundle.observe(host, release, ()), wanted, stats)

    changes = carry_out(plan, host, check_mode=False)
    told = {**stats.public(), "changes": len(changes), "peak_rss_kib": peak[0] if peak else 0}
    print(json.dumps(told))


if __name__ == "__main__":
    child(*sys.argv[1:])
